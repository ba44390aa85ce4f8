// What this processor can do at best with an instruction set: the yardstick that `softargmax bench` puts beside its times.
#include "core/native/job.hpp"
#include "core/native/pack.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

// n rounds of kMultiplyAdds fused multiply-adds of 16 floats, each on an accumulator of its own: as many as hide the
// latency and stay in registers. The sum is returned so that the work has to be done.
double multiply_adds(std::int64_t n) {
    using V = Pack<float>;
    constexpr int kInRegisters = kRegisterBytes == 64 ? 16 : 4;
    const V a = V::all(0.999F), b = V::all(0.001F);
    V x[kInRegisters];
    for (int i = 0; i < kInRegisters; ++i) x[i] = V::all(static_cast<float>(i));
    for (std::int64_t round = 0; round < n; ++round)
        for (int again = 0; again < kMultiplyAdds; again += kInRegisters)
            for (V& each : x) each = fma(each, a, b);
    V sum = V::all(0);
    for (const V& each : x) sum = sum + each;
    return static_cast<double>(max_of(sum));
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
