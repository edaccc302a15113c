/// Memory of this host: how much a job may take, and mappings that are given back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "failure.h"

namespace kvferry::transfer_check {

/// What the kernel says can be had without swapping, within this control group.
std::uint64_t available_memory_bytes();

/// An error before anything is allocated when the job cannot fit (exit status 3): being killed in mid-run would tell nobody why.
Outcome<void> check_memory(std::uint64_t wanted_bytes, std::string_view what);

/// Private anonymous memory, as an engine's allocator would hand it over.
class Mapping {
 public:
  static Outcome<Mapping> make(std::uint64_t bytes);
  Mapping() = default;
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace kvferry::transfer_check
