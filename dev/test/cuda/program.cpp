// program.cpp: train_gpt_tostcu with emulated CUDA and NCCL, as a program of its own: ranks are separate processes that
// a launcher starts.
#include "nccl_on_host.h"

extern "C" {
#include "tost/commands/commands.h"
extern const TostEngine tost_cuda_engine;
}

int main(int argc, char** argv) {
    CudaOnHostOptions o;
    o.devices = 16;
    cuda_on_host_set(o);
    return tost_main(argc, argv, &tost_cuda_engine);
}
