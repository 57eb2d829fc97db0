// flops.c: counts the operations of a model.
#include "flops.h"

#include <string.h>

double flops_per_token(const TostConfig* c) {
    const double L = c->n_layer, C = c->n_embd, nh = c->n_head, weights = L * 10 * C * C + (double)c->vocab_size * C;
    return 6 * weights + 3 * L * (10 * C + 8 * nh + 4 * c->conv * C + (c->memory ? C * (4 * C / nh + 7) : 0));
}

// Dense peak rates (without sparsity) in TFLOP/s from data sheets: float32 without tensor cores, tf32, bf16 with
// float32 accumulation. The first entry applies whose name is in the device's, with as many multiprocessors.
static const struct { const char* name; int multiprocessors; double peak[3]; } gpus[] = {
    {"GB200",        152, {80, 1250, 2500}},
    {"B200",         148, {75, 1100, 2250}},
    {"NVIDIA B300",  148, {75, 1125, 2250}},
    {"GH200",        132, {66.9, 494.7, 989.4}},
    {"H200 NVL",     132, {60, 417.5, 835.5}},
    {"H200",         132, {66.9, 494.7, 989.4}},
    {"H100 PCIe",    114, {51.2, 378, 756}},
    {"H100 NVL",     132, {60, 417.5, 835.5}},
    {"H100",         132, {66.9, 494.7, 989.4}},
    {"H20",           78, {44, 74, 148}},
    {"A100",         108, {19.5, 156, 312}},
    {"A40",           84, {37.4, 74.8, 149.7}},
    {"A30",           56, {10.3, 82, 165}},
    {"A10",           72, {31.2, 62.5, 125}},
    {"L40S",         142, {91.6, 183, 362}},
    {"L40",          142, {90.5, 90.5, 181}},
    {"L4",            58, {30.3, 60, 121}},
    {"RTX 6000 Ada", 142, {91.1, 182.1, 364.2}},
    {"RTX A6000",     84, {38.7, 77.4, 154.8}},
    {"RTX PRO 6000 Blackwell Workstation", 188, {126, 251.9, 503.8}},
    {"RTX 5090",     170, {104.8, 104.8, 209.5}},
    {"RTX 4090",     128, {82.6, 82.6, 165.2}},
    {"RTX 3090",      82, {35.6, 35.6, 71}},
};

double flops_peak_of(const char* device, int multiprocessors, TostDtype dtype) {
    for (size_t i = 0; i < countof(gpus); i++)   // "L4" is in "L40S", which has more multiprocessors
        if (strstr(device, gpus[i].name) && gpus[i].multiprocessors == multiprocessors)
            return gpus[i].peak[dtype] * 1e12;
    return 0;
}
