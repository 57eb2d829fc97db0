// tssa_truth.h: TSSA forward and backward in double, written directly from the formulas.
#ifndef TSSA_TRUTH_H
#define TSSA_TRUTH_H

#include <algorithm>
#include <cmath>
#include <vector>

#include "tost/model.h"

typedef std::vector<double> Doubles;
typedef std::vector<float> Floats;

struct TssaInput {
    bool uniform;                       // temp is 0 and has no gradient
    size_t B, T, C, NH, block, first;   // first: position of the first token
    Floats w, dy, temp, bias;   // (B,T,C), (B,T,C), (NH), (NH,block)
};

struct TssaTruth {
    size_t T, C, NH, HS;
    Doubles y, u, pi, dw, dtemp, dbias;   // u, pi (B,NH,T); dtemp and dbias start at 1
    Doubles end, left;   // (B,2C+NH): S, N, D after the last step; RS, RN, RD at the first

    explicit TssaTruth(const TssaInput& in)
        : T(in.T), C(in.C), NH(in.NH), HS(in.C / in.NH), y(in.B * T * C), u(in.B * NH * T), pi(in.B * NH * T),
          dw(in.B * T * C), dtemp(NH, 1.0), dbias(NH * in.block, 1.0), end(in.B * (2 * C + NH)), left(end.size()) {
        for (size_t b = 0; b < in.B; b++) sequence(in, b);
    }

private:
    static double squared(double x) { return x * x; }

    void membership(const TssaInput& in, size_t b, const Doubles& S) {
        for (size_t t = 0; t < T; t++) {
            double top = -INFINITY, sum = 0;
            for (size_t h = 0; h < NH; h++) {
                double ratios = 0;
                for (size_t d = 0; d < HS; d++)
                    ratios += squared(in.w[(b * T + t) * C + h * HS + d]) /
                              fmax(S[t * C + h * HS + d], TOST_ENERGY_MIN);
                double& of = u[(b * NH + h) * T + t];
                of = ratios + (double)HS * in.bias[h * in.block + in.first + t];
                top = fmax(top, in.temp[h] * of);
            }
            for (size_t h = 0; h < NH; h++) sum += exp(in.temp[h] * u[(b * NH + h) * T + t] - top);
            for (size_t h = 0; h < NH; h++) {
                const size_t at = (b * NH + h) * T + t;
                pi[at] = exp(in.temp[h] * u[at] - top) / sum;
            }
        }
    }

    void sequence(const TssaInput& in, size_t b) {
        const float* w = in.w.data() + b * T * C;
        Doubles S(T * C), N(T * C), M(NH * T, TOST_MASS_EPS), dPi(NH * T), du(NH * T);
        for (size_t i = 0; i < T * C; i++) S[i] = squared(w[i]) + (i >= C ? S[i - C] : 0.0);
        membership(in, b, S);
        const double* p = pi.data() + b * NH * T;
        for (size_t h = 0; h < NH; h++)
            for (size_t t = 0; t < T; t++)
                M[h * T + t] = p[h * T + t] + (t > 0 ? M[h * T + t - 1] : TOST_MASS_EPS);
        for (size_t i = 0; i < T * C; i++) {
            const size_t at = i % C / HS * T + i / C;
            N[i] = squared(w[i]) * p[at] + (i >= C ? N[i - C] : 0.0);
            y[b * T * C + i] = -w[i] * p[at] / (1.0 + N[i] / M[at]);
        }
        double *end_b = &end[b * (2 * C + NH)], *left_b = &left[b * (2 * C + NH)];
        for (size_t c = 0; c < C; c++) end_b[c] = S[(T - 1) * C + c];
        for (size_t c = 0; c < C; c++) end_b[C + c] = N[(T - 1) * C + c];
        for (size_t h = 0; h < NH; h++) end_b[2 * C + h] = M[h * T + T - 1] - TOST_MASS_EPS;
        statistics(in, b, p, N, M, dw.data() + b * T * C, dPi, left_b + C);
        for (size_t t = 0; t < T; t++) {
            double mean = 0;
            for (size_t h = 0; h < NH; h++) mean += p[h * T + t] * dPi[h * T + t];
            for (size_t h = 0; h < NH; h++) {
                const double da = p[h * T + t] * (dPi[h * T + t] - mean);
                du[h * T + t] = in.temp[h] * da;
                dtemp[h] += in.uniform ? 0.0 : da * u[(b * NH + h) * T + t];
                dbias[h * in.block + in.first + t] += (double)HS * du[h * T + t];
            }
        }
        energy(in, b, S, du, dw.data() + b * T * C, left_b);
    }

    // Gradient through y, N and M: dw =, dPi =; left: RN (C), RD (NH)
    void statistics(const TssaInput& in, size_t b, const double* p, const Doubles& N, const Doubles& M, double* dw_b,
                    Doubles& dPi, double* left_b) const {
        const float *w = in.w.data() + b * T * C, *dy = in.dy.data() + b * T * C;
        for (size_t h = 0; h < NH; h++) {
            double RD = 0;
            Doubles RN(HS);
            for (size_t t = T; t-- > 0;) {
                const size_t at = h * T + t;
                double direct = 0;
                for (size_t d = 0; d < HS; d++) {
                    const size_t i = t * C + h * HS + d;
                    const double r = 1.0 / (M[at] + N[i]), dy_w = (double)dy[i] * w[i];
                    RN[d] += dy_w * p[at] * M[at] * r * r;
                    RD -= dy_w * p[at] * N[i] * r * r;
                    direct += squared(w[i]) * RN[d] - dy_w * M[at] * r;
                    dw_b[i] = 2.0 * w[i] * p[at] * RN[d] - p[at] * M[at] * r * dy[i];
                }
                dPi[at] = direct + RD;
            }
            std::copy(RN.begin(), RN.end(), left_b + h * HS);
            left_b[C + h] = RD;
        }
    }

    // Gradient through u: dw +=. S has no gradient where it is clamped to TOST_ENERGY_MIN.
    void energy(const TssaInput& in, size_t b, const Doubles& S, const Doubles& du, double* dw_b,
                double* left_b) const {
        const float* w = in.w.data() + b * T * C;
        for (size_t c = 0; c < C; c++) {
            double RS = 0;
            for (size_t t = T; t-- > 0;) {
                const double s = squared(w[t * C + c]), S_t = S[t * C + c], du_t = du[c / HS * T + t];
                if (S_t > TOST_ENERGY_MIN) RS -= du_t * s / squared(S_t);
                dw_b[t * C + c] += 2.0 * w[t * C + c] * (du_t / fmax(S_t, TOST_ENERGY_MIN) + RS);
            }
            left_b[c] = RS;
        }
    }
};

#endif
