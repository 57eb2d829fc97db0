// rng.c: xoshiro256++ 1.0 (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2019).
#include "base/rng.h"

#include <math.h>

static uint64_t rotl(uint64_t x, int k) { return x << k | x >> (64 - k); }

// splitmix64 (Steele, Lea and Flood, 2014): advances *x by 2^64 / golden ratio and returns a hash of it.
static uint64_t splitmix(uint64_t* x) {
    uint64_t z = *x += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

Rng rng_seeded(uint64_t seed, uint64_t stream) {
    uint64_t x = seed;
    x = splitmix(&x) ^ stream;
    x = splitmix(&x);  // a bijection of stream: no two streams of a seed start at the same x
    Rng rng;
    for (int i = 0; i < 4; i++) rng.s[i] = splitmix(&x);  // not all zero: only one x gives 0
    return rng;
}

uint64_t rng_u64(Rng* rng) {
    uint64_t* s = rng->s;
    uint64_t result = rotl(s[0] + s[3], 23) + s[0];
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

double rng_uniform(Rng* rng) { return (double)(rng_u64(rng) >> 11) * 0x1p-53; }

uint64_t rng_below(Rng* rng, uint64_t n) {
    uint64_t over = -n % n;  // 2^64 mod n: rejecting that many values leaves a multiple of n
    uint64_t x;
    do x = rng_u64(rng); while (x < over);
    return x % n;
}

double rng_normal(Rng* rng) {
    const double two_pi = 6.283185307179586476925287;
    double radius = sqrt(-2.0 * log(1.0 - rng_uniform(rng)));  // 1 - u is in (0, 1]: never log(0)
    return radius * cos(two_pi * rng_uniform(rng));
}
