// Who else keeps this machine's processors busy while something is measured here.
#pragma once

#include <vector>

namespace mr {

inline constexpr double busy_share = 0.05;  // of the processors: more than the system itself takes of a quiet machine

// The share of this machine's processors that other programs used since this object was made; 0 where nobody can tell.
class OtherPrograms {
 public:
  explicit OtherPrograms(std::vector<int> beside = {});  // processes that belong to the measurement, with all that they started
  double share() const;

 private:
  struct Ticks {
    double busy = 0, all = 0, own = 0;  // seconds of processor time
  };
  Ticks now() const;
  std::vector<int> beside_;
  Ticks begin_;
};

// The processes that listen at this TCP port of this machine; none where they belong to others, or nobody listens.
std::vector<int> listeners(int port);

}  // namespace mr
