// rng.h: random numbers, the same on every machine.
#pragma once

#include <stdint.h>

typedef struct { uint64_t s[4]; } Rng;

// The streams of one seed are independent. With mix(x) the output function of splitmix64 and g its
// increment 0x9e3779b97f4a7c15: x = mix((mix(seed + g) ^ stream) + g), and the state is mix(x + g),
// mix(x + 2g), mix(x + 3g), mix(x + 4g).
Rng      rng_seeded(uint64_t seed, uint64_t stream);
uint64_t rng_u64(Rng* rng);
double   rng_uniform(Rng* rng);                         // [0, 1), 53 bits
uint64_t rng_below(Rng* rng, uint64_t n);               // [0, n), unbiased; n > 0
double   rng_normal(Rng* rng);                          // N(0, 1), Box-Muller in double, two uniforms each
