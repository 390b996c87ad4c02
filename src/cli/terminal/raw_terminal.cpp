#include "cli/terminal/raw_terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/error.h"

namespace mr {

namespace {

constexpr std::string_view kPasteOn = "\x1b[?2004h", kPasteOff = "\x1b[?2004l";

// Written by signal handlers.
volatile std::sig_atomic_t interrupts = 0;
int resizes[2] = {-1, -1};  // a self-pipe: poll() would miss a flag set just before it sleeps
termios original;

// Also from signal handlers, so past stdio.
void write_through(std::string_view text) { [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size()); }

void restore() {
  write_through(kPasteOff);
  tcsetattr(STDIN_FILENO, TCSADRAIN, &original);
}

void on_interrupt(int) { interrupts = interrupts + 1; }
void on_resize(int) {
  const int before = errno;
  [[maybe_unused]] const ssize_t n = ::write(resizes[1], "", 1);
  errno = before;
}
void on_death(int signal) {
  restore();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;  // no SA_RESTART: read() returns
  sigaction(signal, &action, nullptr);
}

}  // namespace

void print_now(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

TerminalSize terminal_size() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

RawTerminal::RawTerminal() {
  tcgetattr(STDIN_FILENO, &original);
  if (resizes[0] < 0) check(::pipe2(resizes, O_CLOEXEC | O_NONBLOCK) == 0, "the terminal cannot be watched: {}", std::strerror(errno));
  handle(SIGINT, on_interrupt);
  handle(SIGWINCH, on_resize);
  handle(SIGTERM, on_death);
  handle(SIGHUP, on_death);
  enter();
  write_through(kPasteOn);
}

RawTerminal::~RawTerminal() { restore(); }

void RawTerminal::enter() {
  termios mode = original;
  mode.c_iflag &= ~tcflag_t(ICRNL | INLCR | IGNCR | IXON | ISTRIP);
  mode.c_lflag &= ~tcflag_t(ICANON | ECHO | IEXTEN | ISIG);
  mode.c_cc[VMIN] = 1;
  mode.c_cc[VTIME] = 0;
  if (catching_) {
    mode.c_lflag |= ISIG | NOFLSH;  // Ctrl-C flushes neither pending input nor half-written escape sequences
    mode.c_cc[VSUSP] = mode.c_cc[VQUIT] = _POSIX_VDISABLE;
  }
  tcsetattr(STDIN_FILENO, TCSADRAIN, &mode);  // keeps pending input
}

RawTerminal::Got RawTerminal::read(std::string& bytes, int timeout_ms) {
  pollfd in[] = {{STDIN_FILENO, POLLIN, 0}, {resizes[0], POLLIN, 0}};
  ::poll(in, 2, timeout_ms);
  char buffer[4096];
  if (in[1].revents && ::read(resizes[0], buffer, sizeof buffer) > 0) return Got::resize;
  if (!in[0].revents) return Got::pause;
  const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
  if (n < 0 && errno == EINTR) return Got::pause;
  if (n <= 0) return Got::end;
  bytes.append(buffer, size_t(n));
  return Got::bytes;
}

void RawTerminal::catch_interrupts(bool on) {
  catching_ = on;
  if (on) interrupts = 0;
  enter();
}

int RawTerminal::n_interrupts() const { return interrupts; }

void RawTerminal::suspend() {
  restore();
  ::raise(SIGTSTP);
  enter();
  write_through(kPasteOn);
}

}  // namespace mr
