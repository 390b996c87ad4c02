// The load of other programs on this machine during a measurement.
#pragma once

#include <vector>

namespace mr {

inline constexpr double busy_share = 0.05;  // of the processors: more than the system itself uses when idle

// The share of this machine's processors that other programs used since construction; 0 if unknown.
class OtherPrograms {
 public:
  explicit OtherPrograms(std::vector<int> beside = {});  // processes that belong to the measurement, with their descendants
  double share() const;

 private:
  struct Ticks {
    double busy = 0, all = 0, own = 0;  // seconds of CPU time
  };
  Ticks now() const;
  std::vector<int> beside_;
  Ticks begin_;
};

// The processes that listen on this TCP port; none if they belong to other users, or there are none.
std::vector<int> listeners(int port);

}  // namespace mr
