/// Worker processes: this program again, with one channel, that die with the command whatever happens to it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "channel.h"

namespace kvferry::transfer_check {

/// The argument that makes the program a worker; not in any help.
inline constexpr const char* kWorkerArgument = "__worker";
inline constexpr const char* kBenchWorker = "bench";  ///< second argument: the target of `bench`
inline constexpr int kChannelNumber = 3;              ///< descriptor of the channel in a process of ours

/// How a process ended.
struct Ending {
  bool by_signal = false;
  int number = 0;            ///< of the signal, or the exit status
  std::string text() const;  ///< "was killed by signal 9 (Killed)"
};

/// One worker: a process, or a thread of this one where both ends must share a process.
class Child {
 public:
  /// `program` and `arguments` run with the channel as descriptor 3, stdout on stderr, stderr kept here. The kernel kills it when this thread ends.
  static Outcome<std::unique_ptr<Child>> spawn(std::string name, const std::string& program, const std::vector<std::string>& arguments);
  /// `run` gets the other end.
  static Outcome<std::unique_ptr<Child>> start_thread(std::string name, void (*run)(Channel));
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  const std::string& name() const { return name_; }
  Channel& channel() { return channel_; }
  pid_t process() const { return process_; }  ///< 0: a thread
  int error_descriptor() const { return errors_.get(); }

  /// How it ended, if it has.
  std::optional<Ending> ended();
  /// Kills it and collects it.
  void end();
  /// Whether the kernel says that it is stopped (SIGSTOP, a debugger).
  bool is_stopped() const;
  void signal(int number) const;
  /// What it wrote to stderr so far, in one line, cut.
  std::string said();

 private:
  Child(std::string name, Channel channel) : name_(std::move(name)), channel_(std::move(channel)) {}
  std::string name_;
  Channel channel_;
  pid_t process_ = 0;
  Descriptor errors_;
  std::string said_;
  std::optional<Ending> ending_;
  std::thread thread_;
};

/// Path of this program, for spawning it again and finding what lies beside it.
std::string program_path();

}  // namespace kvferry::transfer_check
