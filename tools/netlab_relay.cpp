// SPDX-License-Identifier: Apache-2.0
// A switch that adds latency: one TAP device per network namespace, every frame delivered to the
// namespace it is addressed to, a given time after it was read. Started by tools/netlab, which
// shapes the rate with the kernel's TBF on the same devices.
//
//   netlab_relay MICROSECONDS CONTROL NAMESPACE...
//
// CONTROL is a FIFO: a number written to it is the new latency in microseconds. Writes "ready" when
// the devices exist, and on SIGTERM one line about how late frames were delivered.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::microseconds;
using Mac = std::array<unsigned char, 6>;

// Offload lets frames of 64 KB through whole; without it the relay cannot keep up with 1 Gbit/s.
constexpr unsigned kOffload = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
constexpr std::size_t kHeader = 10;  // of struct virtio_net_hdr, whose own file is not C++
constexpr std::size_t kLargestFrame = kHeader + 18 + 65536;
constexpr int kFramesPerTurn = 8;  // of one device, before what is due and the others

int check(int result, const std::string& what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

struct Port {
  int device = -1;
  Mac mac{};
};

void enter(const std::string& space) {
  const int handle = check(open(space.c_str(), O_RDONLY | O_CLOEXEC), "open " + space);
  check(setns(handle, CLONE_NEWNET), "enter " + space);
  close(handle);
}

// Makes eth0 in the namespace and stays there; the device can be used from every namespace.
Port open_port(const std::string& space) {
  enter(space);
  Port port;
  port.device = check(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "open /dev/net/tun");
  ifreq request{};
  std::strcpy(request.ifr_name, "eth0");
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  check(ioctl(port.device, TUNSETIFF, &request), "create eth0 in " + space);
  check(ioctl(port.device, TUNSETOFFLOAD, kOffload), "offload of eth0 in " + space);
  check(ioctl(port.device, SIOCGIFHWADDR, &request), "address of eth0 in " + space);
  std::memcpy(port.mac.data(), request.ifr_hwaddr.sa_data, port.mac.size());
  return port;
}

// How late frames were delivered, counted by microsecond.
class Lateness {
 public:
  void add(Clock::duration late) {
    const auto us = std::max<long>(0, std::chrono::duration_cast<Microseconds>(late).count());
    ++counts_[std::min<std::size_t>(static_cast<std::size_t>(us), counts_.size() - 1)];
    ++frames_;
    worst_ = std::max(worst_, us);
  }

  void print(bool realtime) const {
    std::printf("frames=%ld p50_us=%ld p99_us=%ld worst_us=%ld realtime=%d\n", frames_,
                quantile(0.50), quantile(0.99), worst_, realtime);
  }

 private:
  long quantile(double share) const {
    long seen = 0;
    std::size_t us = 0;
    while (us + 1 < counts_.size() && (seen += counts_[us]) < share * frames_) ++us;
    return static_cast<long>(us);
  }

  std::vector<long> counts_ = std::vector<long>(200'000);
  long frames_ = 0;
  long worst_ = 0;
};

class Relay {
 public:
  explicit Relay(std::vector<Port> ports) : ports_(std::move(ports)) {
    for (const Port& port : ports_) by_mac_[port.mac] = port.device;
  }

  void run(int control, int stop, Microseconds latency) {
    std::vector<pollfd> ready{{stop, POLLIN, 0}, {control, POLLIN, 0}};
    for (const Port& port : ports_) ready.push_back({port.device, POLLIN, 0});
    while (true) {
      wait(ready);
      deliver();
      if (ready[0].revents) return;
      if (ready[1].revents) latency = read_latency(control, latency);
      for (const pollfd& device : std::span(ready).subspan(2)) {
        if (!device.revents) continue;
        take(device.fd, latency);
        deliver();
      }
    }
  }

  const Lateness& lateness() const { return lateness_; }

 private:
  struct Frame {
    Clock::time_point due;
    int from;
    std::vector<char> bytes;
  };

  void wait(std::vector<pollfd>& ready) const {
    timespec until_due{};
    if (!waiting_.empty()) {
      const auto left = std::max(Clock::duration::zero(), waiting_.front().due - Clock::now());
      until_due = {.tv_sec = left / std::chrono::seconds(1),
                   .tv_nsec = (left % std::chrono::seconds(1)).count()};
    }
    check(ppoll(ready.data(), ready.size(), waiting_.empty() ? nullptr : &until_due, nullptr),
          "poll");
  }

  static Microseconds read_latency(int control, Microseconds present) {
    std::array<char, 64> text{};
    if (read(control, text.data(), text.size() - 1) <= 0) return present;
    return Microseconds(std::max(0L, std::atol(text.data())));
  }

  void take(int device, Microseconds latency) {
    for (int i = 0; i < kFramesPerTurn; ++i) {
      const auto size = read(device, buffer_.data(), buffer_.size());
      if (size < static_cast<long>(kHeader + 2 * sizeof(Mac))) return;
      // Never before the frame ahead, not even when the latency has just become shorter: what
      // overtakes looks like a loss to TCP.
      last_due_ = std::max(last_due_, Clock::now() + latency);
      waiting_.push_back({last_due_, device, {buffer_.begin(), buffer_.begin() + size}});
    }
  }

  void deliver() {
    for (auto now = Clock::now(); !waiting_.empty() && waiting_.front().due <= now;
         now = Clock::now()) {
      lateness_.add(now - waiting_.front().due);
      send(waiting_.front());
      waiting_.pop_front();
    }
  }

  void send(const Frame& frame) const {
    Mac to;
    std::memcpy(to.data(), frame.bytes.data() + kHeader, to.size());
    const auto known = by_mac_.find(to);
    for (const Port& port : ports_) {
      if (port.device == frame.from) continue;
      if (known != by_mac_.end() && known->second != port.device) continue;
      // A device that is down or full loses the frame, as a real one would.
      [[maybe_unused]] const auto sent = write(port.device, frame.bytes.data(), frame.bytes.size());
    }
  }

  std::vector<Port> ports_;
  std::map<Mac, int> by_mac_;
  std::deque<Frame> waiting_;
  Clock::time_point last_due_;
  std::vector<char> buffer_ = std::vector<char>(kLargestFrame);
  Lateness lateness_;
};

int relay(std::span<char*> arguments) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const int stop = check(signalfd(-1, &signals, SFD_CLOEXEC), "signalfd");
  const int control = check(open(arguments[2], O_RDWR | O_NONBLOCK | O_CLOEXEC), arguments[2]);
  const std::string home =
      "/proc/self/fd/" + std::to_string(check(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC),
                                              "open /proc/self/ns/net"));
  std::vector<Port> ports;
  for (char* space : arguments.subspan(3)) ports.push_back(open_port(space));
  enter(home);  // what runs in a namespace of the lab is taken for a part of the job

  prctl(PR_SET_TIMERSLACK, 1);
  // Frames come and go by the thousand: memory given back to the system would be asked for again.
  mallopt(M_TRIM_THRESHOLD, 1 << 28);
  const sched_param priority{.sched_priority = 10};
  const bool realtime = sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
  std::puts("ready");
  std::fflush(stdout);

  Relay relay(std::move(ports));
  relay.run(control, stop, Microseconds(std::atol(arguments[1])));
  relay.lateness().print(realtime);
  return 0;
}

}  // namespace

int main(int count, char** values) {
  if (count < 4) {
    std::fputs("usage: netlab_relay MICROSECONDS CONTROL NAMESPACE...\n", stderr);
    return 2;
  }
  try {
    return relay(std::span(values, static_cast<std::size_t>(count)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "netlab_relay: %s\n", error.what());
    return 1;
  }
}
