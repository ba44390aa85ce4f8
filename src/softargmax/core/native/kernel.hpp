// Kernels: functions that are compiled once for each instruction set.
//
//     SOFTARGMAX_KERNEL(room, run, const Args)
//
// declares softargmax::v4::room::run(const softargmax::room::Args&), the same for every other instruction set, and
// softargmax::room::run, which calls that of the instruction set in use. A kernel's own source sees only its own.
#pragma once

#ifdef SOFTARGMAX_ISA_NAME

#define SOFTARGMAX_KERNEL(room, name, Args)           \
    namespace softargmax::SOFTARGMAX_ISA_NAME::room { \
    using namespace softargmax::room;                 \
    void name(Args& args);                            \
    }

#else

#include "processor.hpp"

#define SOFTARGMAX_DECLARE(isa, room, name, Args) \
    namespace softargmax::isa::room {             \
    using namespace softargmax::room;             \
    void name(Args& args);                        \
    }
#define SOFTARGMAX_ENTRY(isa, room, name) softargmax::isa::room::name,
#define SOFTARGMAX_KERNEL(room, name, Args)                                                              \
    SOFTARGMAX_EACH_ISA(SOFTARGMAX_DECLARE, room, name, Args)                                            \
    namespace softargmax::room {                                                                         \
    inline void name(Args& args) {                                                                       \
        static constexpr void (*kernels[])(Args&) = {SOFTARGMAX_EACH_ISA(SOFTARGMAX_ENTRY, room, name)}; \
        kernels[chosen_isa()](args);                                                                     \
    }                                                                                                    \
    }

#endif
