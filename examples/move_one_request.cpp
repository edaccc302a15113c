// Moves one request from a prefill pool to a decode pool and compares every byte. Both engines live in this process and use the loopback backend, so
// it runs anywhere. Two processes, or two hosts, differ in NodeOptions::backend and in the address given to open_peer.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <vector>

#include "kvferry/node.h"

using namespace kvferry;
using namespace std::chrono_literals;

constexpr std::uint32_t kLayers = 2, kPageTokens = 16, kTokenBytes = 64, kPagesTotal = 8;
constexpr std::uint64_t kPageBytes = kPageTokens * kTokenBytes, kEntryBytes = kPagesTotal * kPageBytes, kDeadlineNs = 5'000'000'000;
constexpr std::size_t kPages = static_cast<std::size_t>(IndexSpace::pages);

/// Ends the program with the error's text; what a serving engine would do is up to it.
template <class T>
T value_of(Result<T> result) {
  if (!result) {
    std::cerr << "move_one_request: " << result.error().text << "\n";
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

/// One layer is one entry: a buffer of pages. Each entry says what it is, so that nothing is paired by position.
Pool describe_pool(const std::vector<std::uint8_t>& memory) {
  Pool pool;
  pool.model = "example";
  pool.kind = "MLA";
  pool.layers_total = kLayers;
  pool.stage = {0, kLayers};
  pool.page_size = kPageTokens;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    Entry entry;
    entry.role = Role::latent;
    entry.layer = layer;
    entry.page_size = kPageTokens;
    entry.base_address = reinterpret_cast<std::uint64_t>(memory.data()) + layer * kEntryBytes;
    entry.pitch_bytes = entry.item_length_bytes = kPageBytes;
    entry.index_count = kPagesTotal;
    pool.entries.push_back(entry);
  }
  return pool;
}

std::unique_ptr<Node> open_node(const char* name, const std::vector<std::uint8_t>& memory, std::uint32_t access) {
  NodeOptions options;
  options.backend = "loopback";
  options.engine.name = name;
  options.listen = "127.0.0.1:0";
  std::unique_ptr<Node> node = value_of(Node::open(options));
  value_of(node->register_region({reinterpret_cast<std::uint64_t>(memory.data()), memory.size(), KVFERRY_PURPOSE_KV, KVFERRY_MEMORY_HOST, access}));
  value_of(node->set_pool(describe_pool(memory)));
  return node;
}

int main() {
  std::vector<std::uint8_t> source(kLayers * kEntryBytes), target(kLayers * kEntryBytes, 0xEE);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
  const auto prefill = open_node("prefill", source, KVFERRY_ACCESS_LOCAL);
  const auto decode = open_node("decode", target, KVFERRY_ACCESS_REMOTE_WRITE);

  const PeerId to_decode = value_of(prefill->open_peer(decode->session_id(), 5s));
  value_of(prefill->wait_peer(to_decode, 5s));

  // Decode says where the request with this room number goes; prefill says where it is. Position i goes to position i.
  const std::vector<std::uint64_t> source_pages{0, 3, 5}, target_pages{6, 1, 4};
  Expectation expectation;
  expectation.room = 42;
  expectation.writers = value_of(decode->wait_peers(1, 5s));
  expectation.indices[kPages] = target_pages;
  expectation.deadline_ns = kDeadlineNs;
  const TransferId arriving = value_of(decode->expect(expectation));

  PagedTransfer transfer;
  transfer.peer = to_decode;
  transfer.room = 42;
  transfer.indices[kPages] = source_pages;
  transfer.deadline_ns = kDeadlineNs;
  const TransferId leaving = value_of(prefill->submit(transfer));

  const Node::Outcome sent = value_of(prefill->wait(leaving, 10s)), received = value_of(decode->wait(arriving, 10s));
  if (sent.error || received.error) value_of<void>(fail(sent.error ? *sent.error : *received.error));

  std::vector<std::uint8_t> wanted(target.size(), 0xEE);
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    const std::uint64_t begin = layer * kEntryBytes;
    for (std::size_t i = 0; i < source_pages.size(); ++i) {
      std::memcpy(&wanted[begin + target_pages[i] * kPageBytes], &source[begin + source_pages[i] * kPageBytes], kPageBytes);
    }
  }
  std::cout << sent.figures.bytes << " bytes in " << sent.figures.writes << " writes: " << (wanted == target ? "equal" : "WRONG") << "\n";
  return wanted == target ? 0 : 1;
}
