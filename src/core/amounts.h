// Human-readable bytes and times.
#pragma once

#include <cstdint>
#include <string>

namespace mr {

std::string bytes_text(int64_t bytes);   // 512 bytes, 98.4 kB, 1.24 GB: decimal, three digits
std::string clock_text(double seconds);  // 0:42, 12:05, 1:02:03
std::string age_text(double seconds);    // 12 seconds, 3 minutes, 1 hour, 5 days

int64_t memory_bytes(const std::string&);  // "512M", "4G", "0.4" (of the machine's memory), "1000000"; 0: it is none of these

}  // namespace mr
