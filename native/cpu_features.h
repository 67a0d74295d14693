// Which vector instructions an x86 processor and its system support. __builtin_cpu_supports asks a
// table of the compiler's run-time library, which is all zeros in Zig's.
#pragma once

#include <cpuid.h>

namespace gpupipe {

// A leaf of CPUID, and the bits of its registers that must be set: see CPUID in Intel's Software
// Developer's Manual, volume 2A.
struct CpuBits {
  unsigned leaf, ebx, ecx;
};

inline bool has_bits(const CpuBits& bits) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(bits.leaf, 0, &eax, &ebx, &ecx, &edx) &&
         (ebx & bits.ebx) == bits.ebx && (ecx & bits.ecx) == bits.ecx;
}

// Whether the system keeps the registers of these bits of XCR0 when it switches threads.
inline bool keeps_registers(unsigned state) {
  if (!has_bits({1, 0, 1u << 27})) return false;  // OSXSAVE: xgetbv exists
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & state) == state;
}

constexpr CpuBits kClmulBits = {1, 0, 1u << 1 | 1u << 19};            // PCLMULQDQ, SSE4.1
constexpr CpuBits kAvxBits = {1, 0, 1u << 12 | 1u << 28 | 1u << 29};  // FMA, AVX, F16C
constexpr CpuBits kAvx2Bits = {7, 1u << 5, 0};
constexpr CpuBits kAvx512Bits = {
    7, 1u << 16 | 1u << 30 | 1u << 31,  // F, BW, VL
    1u << 1 | 1u << 11,                 // VBMI, VNNI
};
constexpr unsigned kAvxRegisters = 0x06, kAvx512Registers = 0xe6;

}  // namespace gpupipe
