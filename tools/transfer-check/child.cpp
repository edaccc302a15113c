#include "child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace kvferry::transfer_check {
namespace {

constexpr std::size_t kSaidBytesMax = 4096;
constexpr int kCannotStart = 127;

/// Between fork and exec: only calls that are safe there.
[[noreturn]] void become(const char* program, char* const* arguments, int channel, int errors, pid_t parent) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);  // The getppid below sees a parent that ended before this line.
  if (::getppid() != parent) ::_exit(kCannotStart);
  // The channel may have a number that the copies below would overwrite: move it away first.
  const int channel_copy = ::fcntl(channel, F_DUPFD, kChannelNumber + 1);
  const int errors_copy = ::fcntl(errors, F_DUPFD, kChannelNumber + 1);
  if (channel_copy < 0 || errors_copy < 0 || ::dup2(channel_copy, kChannelNumber) < 0 || ::dup2(errors_copy, STDOUT_FILENO) < 0 ||
      ::dup2(errors_copy, STDERR_FILENO) < 0) {
    ::_exit(kCannotStart);
  }
  (void)::close(channel_copy);
  (void)::close(errors_copy);
  (void)::execv(program, arguments);
  ::_exit(kCannotStart);
}

Error system_error(const std::string& what, const char* call) {
  Error error(ErrorCode::limit, what + ": " + call + ": " + std::strerror(errno));
  error.sys_errno = errno;
  return error;
}

}  // namespace

std::string Ending::text() const {
  if (!by_signal) return "ended with exit status " + std::to_string(number);
  const char* name = ::strsignal(number);
  return "was killed by signal " + std::to_string(number) + " (" + (name == nullptr ? "unknown" : name) + ")";
}

Outcome<std::unique_ptr<Child>> Child::spawn(std::string name, const std::string& program, const std::vector<std::string>& arguments) {
  auto channels = Channel::make_pair();
  if (!channels) return tl::unexpected(channels.error());
  int errors[2] = {-1, -1};
  if (::pipe2(errors, O_CLOEXEC) != 0) return because(system_error("start " + name, "pipe2"));
  Descriptor errors_read(errors[0]), errors_write(errors[1]);
  (void)::fcntl(errors_read.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> words = arguments;
  words.insert(words.begin(), program);
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) return because(system_error("start " + name, "fork"));
  if (process == 0) become(program.c_str(), pointers.data(), channels->second.descriptor(), errors_write.get(), parent);

  std::unique_ptr<Child> child(new Child(std::move(name), std::move(channels->first)));
  child->process_ = process;
  child->errors_ = std::move(errors_read);
  return child;
}

Outcome<std::unique_ptr<Child>> Child::start_thread(std::string name, void (*run)(Channel)) {
  auto channels = Channel::make_pair();
  if (!channels) return tl::unexpected(channels.error());
  std::unique_ptr<Child> child(new Child(std::move(name), std::move(channels->first)));
  child->thread_ = std::thread([run, end = std::move(channels->second)]() mutable { run(std::move(end)); });
  return child;
}

Child::~Child() { end(); }

std::optional<Ending> Child::ended() {
  if (process_ == 0 || ending_) return ending_;
  int status = 0;
  if (::waitpid(process_, &status, WNOHANG) != process_) return std::nullopt;
  ending_ = WIFSIGNALED(status) ? Ending{true, WTERMSIG(status)} : Ending{false, WEXITSTATUS(status)};
  return ending_;
}

void Child::end() {
  channel_.close();
  if (thread_.joinable()) thread_.join();  // A worker ends when its channel does.
  if (process_ == 0 || ending_) return;
  (void)::kill(process_, SIGKILL);  // It is ours and not collected yet, so the number is still its own.
  int status = 0;
  while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
  ending_ = Ending{true, SIGKILL};
}

bool Child::is_stopped() const {
  if (process_ == 0 || ending_) return false;
  std::ifstream stream("/proc/" + std::to_string(process_) + "/stat");
  std::string line;
  std::getline(stream, line);
  const auto name_end = line.rfind(')');  // The name before it may contain anything.
  return name_end != std::string::npos && name_end + 2 < line.size() && (line[name_end + 2] == 'T' || line[name_end + 2] == 't');
}

void Child::signal(int number) const {
  if (process_ != 0 && !ending_) (void)::kill(process_, number);  // It may have ended on its own: `ended` tells.
}

std::string Child::said() {
  char block[1024];
  ssize_t got = 0;
  while (errors_.get() >= 0 && (got = ::read(errors_.get(), block, sizeof block)) > 0) said_.append(block, static_cast<std::size_t>(got));
  if (said_.size() > kSaidBytesMax) said_.erase(0, said_.size() - kSaidBytesMax);
  std::string line = said_;
  std::replace(line.begin(), line.end(), '\n', ' ');
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::string program_path() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string("/proc/self/exe") : path.string();
}

}  // namespace kvferry::transfer_check
