/// One list of fields per message drives both directions, so that what is written and what is read cannot drift apart:
///
///                           ┌── Measure: checks each field against its limit and adds up the bytes, before anything is allocated
///   fields(wire, message) ──┼── Writer:  appends each field of a message that was measured
///                           └── Reader:  checks each length against its limit and against the bytes left, then allocates and takes
///
/// Measure and Reader keep the first error and ignore what follows.
#include "payload.h"

#include <algorithm>
#include <array>
#include <boost/endian/conversion.hpp>
#include <charconv>
#include <concepts>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "text.h"

namespace kvferry::session {
namespace {

using boost::endian::endian_load;
using boost::endian::endian_store;
using boost::endian::order;

constexpr std::uint32_t kCountBytes = 4;  // in front of texts, blobs and lists
constexpr std::uint32_t kRegionBytes = 32;
constexpr std::uint32_t kRegionIdBytes = 8;
constexpr std::uint32_t kIndexBytes = 4;

std::string beyond(std::string_view field, std::string_view unit, std::uint64_t value, std::uint64_t limit) {
  return std::string(field) + " " + std::string(unit) + " " + std::to_string(value) + " exceeds the limit of " + std::to_string(limit);
}

std::string hex(std::uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.begin(), digits.end(), value, 16).ptr;
  return "0x" + std::string(digits.begin(), end);
}

/// What no backend can have registered (backend_abi.h): the receiver would compute with it.
std::optional<Error> check_region(std::string_view field, const RegionInfo& region) {
  std::uint64_t end = 0;
  std::string reason;
  if (region.id == 0) reason = "has id 0";
  else if (region.length == 0) reason = "is empty";
  else if (!checked_add(region.address, region.length, end)) reason = "wraps around the address space";
  else return std::nullopt;
  return Error(ErrorCode::out_of_range, std::string(field) + " " + std::to_string(region.id) + " at " + hex(region.address) + ", " +
                                            std::to_string(region.length) + " bytes, " + reason);
}

class Measure {
 public:
  template <std::integral Number>
  void number(std::string_view, Number) {
    bytes_count_ += sizeof(Number);
  }

  void raw(std::string_view, std::span<const std::uint8_t> bytes) { bytes_count_ += bytes.size(); }

  void text(std::string_view field, std::string_view value) {
    counted(field, "length", value.size(), 1, kTextBytesMax);
    if (error_) return;
    if (const auto problem = text_problem(value)) refuse(ErrorCode::invalid_argument, std::string(field) + " " + *problem);
  }

  void optional_document(std::string_view field, const std::optional<std::string>& value, std::uint32_t bytes_max) {
    number(field, std::uint32_t{});
    if (value) counted(field, "length", value->size(), 1, bytes_max);
  }

  void blob(std::string_view field, const std::vector<std::uint8_t>& value) { counted(field, "length", value.size(), 1, kBlobBytesMax); }

  void regions(std::string_view field, const std::vector<RegionInfo>& list) {
    counted(field, "count", list.size(), kRegionBytes, kRegionsMax);
    for (const RegionInfo& region : list) {
      if (error_) return;
      if (auto problem = check_region(field, region)) refuse(problem->code, problem->text);
    }
  }

  template <std::unsigned_integral Number>
  void numbers(std::string_view field, const std::vector<Number>& list, std::uint32_t count_max) {
    counted(field, "count", list.size(), sizeof(Number), count_max);
  }

  void refuse(ErrorCode code, std::string text) {
    if (!error_) error_ = Error(code, std::move(text));
  }
  const std::optional<Error>& error() const noexcept { return error_; }
  std::size_t bytes_count() const noexcept { return bytes_count_; }

 private:
  void counted(std::string_view field, std::string_view unit, std::size_t elements, std::size_t element_bytes, std::uint32_t elements_max) {
    if (elements > elements_max) return refuse(ErrorCode::out_of_range, beyond(field, unit, elements, elements_max));
    bytes_count_ += kCountBytes + elements * element_bytes;
  }

  std::size_t bytes_count_ = 0;
  std::optional<Error> error_;
};

class Writer {
 public:
  explicit Writer(std::vector<std::uint8_t>& bytes) : bytes_(bytes) {}

  template <std::integral Number>
  void number(std::string_view, Number value) {
    endian_store<Number, sizeof(Number), order::little>(grow(sizeof(Number)), value);
  }

  void raw(std::string_view, std::span<const std::uint8_t> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }

  void text(std::string_view field, std::string_view value) {
    blob(field, std::span(reinterpret_cast<const std::uint8_t*>(value.data()), value.size()));
  }

  void optional_document(std::string_view field, const std::optional<std::string>& value, std::uint32_t) {
    number(field, std::uint32_t{value.has_value()});
    if (value) text(field, *value);
  }

  void blob(std::string_view field, std::span<const std::uint8_t> value) {
    number(field, static_cast<std::uint32_t>(value.size()));
    raw(field, value);
  }

  void regions(std::string_view field, const std::vector<RegionInfo>& list) {
    number(field, static_cast<std::uint32_t>(list.size()));
    std::uint8_t* to = grow(list.size() * kRegionBytes);
    for (const RegionInfo& region : list) {
      endian_store<std::uint64_t, 8, order::little>(to, region.id);
      endian_store<std::uint64_t, 8, order::little>(to + 8, region.address);
      endian_store<std::uint64_t, 8, order::little>(to + 16, region.length);
      endian_store<std::uint32_t, 4, order::little>(to + 24, region.purpose);
      endian_store<std::uint32_t, 4, order::little>(to + 28, region.memory_kind);
      to += kRegionBytes;
    }
  }

  template <std::unsigned_integral Number>
  void numbers(std::string_view field, const std::vector<Number>& list, std::uint32_t) {
    number(field, static_cast<std::uint32_t>(list.size()));
    std::uint8_t* to = grow(list.size() * sizeof(Number));
    for (const Number value : list) {
      endian_store<Number, sizeof(Number), order::little>(to, value);
      to += sizeof(Number);
    }
  }

  /// The measure has refused already what can be refused.
  void refuse(ErrorCode, const std::string&) {}

 private:
  std::uint8_t* grow(std::size_t bytes_count) {
    bytes_.resize(bytes_.size() + bytes_count);
    return bytes_.data() + (bytes_.size() - bytes_count);
  }

  std::vector<std::uint8_t>& bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  template <std::integral Number>
  void number(std::string_view field, Number& ret_value) {
    if (!has(field, sizeof(Number))) return;
    ret_value = endian_load<Number, sizeof(Number), order::little>(take(sizeof(Number)));
  }

  void raw(std::string_view field, std::span<std::uint8_t> ret_bytes) {
    if (!has(field, ret_bytes.size())) return;
    std::copy_n(take(ret_bytes.size()), ret_bytes.size(), ret_bytes.begin());
  }

  void text(std::string_view field, std::string& ret_value) {
    const auto bytes = counted(field, kTextBytesMax);
    const std::string_view value(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (const auto problem = text_problem(value)) return refuse(ErrorCode::io, std::string(field) + " " + *problem);
    ret_value = value;
  }

  void optional_document(std::string_view field, std::optional<std::string>& ret_value, std::uint32_t bytes_max) {
    std::uint32_t present = 0;
    number(field, present);
    if (present > 1) return refuse(ErrorCode::io, std::string(field) + " presence is " + std::to_string(present) + ", not 0 or 1");
    if (present == 0) return;
    const auto bytes = counted(field, bytes_max);
    ret_value.emplace(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  void blob(std::string_view field, std::vector<std::uint8_t>& ret_value) {
    const auto bytes = counted(field, kBlobBytesMax);
    ret_value.assign(bytes.begin(), bytes.end());
  }

  void regions(std::string_view field, std::vector<RegionInfo>& ret_list) {
    const std::size_t elements = count(field, kRegionsMax, kRegionBytes);
    const std::uint8_t* from = take(elements * kRegionBytes);
    ret_list.reserve(elements);
    for (std::size_t i = 0; i < elements; ++i, from += kRegionBytes) {
      RegionInfo region;
      region.id = endian_load<std::uint64_t, 8, order::little>(from);
      region.address = endian_load<std::uint64_t, 8, order::little>(from + 8);
      region.length = endian_load<std::uint64_t, 8, order::little>(from + 16);
      region.purpose = endian_load<std::uint32_t, 4, order::little>(from + 24);
      region.memory_kind = endian_load<std::uint32_t, 4, order::little>(from + 28);
      if (auto problem = check_region(field, region)) return refuse(problem->code, problem->text);
      ret_list.push_back(region);
    }
  }

  template <std::unsigned_integral Number>
  void numbers(std::string_view field, std::vector<Number>& ret_list, std::uint32_t count_max) {
    const std::size_t elements = count(field, count_max, sizeof(Number));
    const std::uint8_t* from = take(elements * sizeof(Number));
    ret_list.resize(elements);
    for (Number& value : ret_list) {
      value = endian_load<Number, sizeof(Number), order::little>(from);
      from += sizeof(Number);
    }
  }

  void refuse(ErrorCode code, std::string text) {
    if (!error_) error_ = Error(code, std::move(text));
  }

  std::optional<Error> finish() {
    if (!error_ && !bytes_.empty()) refuse(ErrorCode::io, "bytes left over after the last field: " + std::to_string(bytes_.size()));
    return error_;
  }

 private:
  /// The check before each take and each allocation.
  bool has(std::string_view field, std::uint64_t bytes_count) {
    if (error_) return false;
    if (bytes_count <= bytes_.size()) return true;
    refuse(ErrorCode::io, std::string(field) + " of " + std::to_string(bytes_count) + " bytes where " + std::to_string(bytes_.size()) +
                              " bytes of the payload are left");
    return false;
  }

  const std::uint8_t* take(std::size_t bytes_count) {
    const std::uint8_t* begin = bytes_.data();
    bytes_ = bytes_.subspan(bytes_count);
    return begin;
  }

  /// Empty after an error.
  std::span<const std::uint8_t> counted(std::string_view field, std::uint32_t bytes_max) {
    std::uint32_t length = 0;
    number(field, length);
    if (length > bytes_max) refuse(ErrorCode::out_of_range, beyond(field, "length", length, bytes_max));
    if (!has(field, length)) return {};
    return {take(length), length};
  }

  /// 0 after an error.
  std::size_t count(std::string_view field, std::uint32_t count_max, std::uint32_t element_bytes) {
    std::uint32_t elements = 0;
    number(field, elements);
    if (elements > count_max) refuse(ErrorCode::out_of_range, beyond(field, "count", elements, count_max));
    return has(field, std::uint64_t{elements} * element_bytes) ? elements : 0;
  }

  std::span<const std::uint8_t> bytes_;
  std::optional<Error> error_;
};

/// `Is<Hello> auto& m`: Hello when reading, const Hello when writing.
template <class Given, class Wanted>
concept Is = std::same_as<std::remove_const_t<Given>, Wanted>;

void fields(auto& wire, Is<Hello> auto& m) {
  // The two versions stay where they are in every version to come: a refusal must be able to name them.
  wire.number("version_min", m.version_min);
  wire.number("version_max", m.version_max);
  wire.raw("engine", m.engine);
  wire.number("writer tp_rank", m.writer.tp_rank);
  wire.number("writer pp_rank", m.writer.pp_rank);
  wire.number("heartbeat_interval_ns", m.heartbeat_interval_ns);
  wire.number("lease_ns", m.lease_ns);
  wire.number("layout_digest", m.layout_digest);
  wire.number("ratios_digest", m.ratios_digest);
  wire.number("regions_generation", m.regions_generation);
  wire.text("name", m.name);
  wire.text("session_id", m.session_id);
  wire.text("backend", m.backend);
  wire.text("lane", m.lane);
  wire.optional_document("pool", m.pool, kPoolTextBytesMax);
  wire.regions("region", m.regions);
  wire.blob("region_blob", m.region_blob);
  wire.blob("endpoint", m.endpoint);
  if (m.version_min == 0 || m.version_min > m.version_max) {
    wire.refuse(ErrorCode::version, "version range " + std::to_string(m.version_min) + " to " + std::to_string(m.version_max) + " is empty");
  }
}

void fields(auto& wire, Is<Ready> auto& m) { wire.text("lane", m.lane); }

void fields(auto& wire, Is<Heartbeat> auto& m) { wire.number("count", m.count); }

void fields(auto& wire, Is<RegionsAdded> auto& m) {
  wire.number("generation", m.generation);
  wire.regions("region", m.regions);
  wire.blob("blob", m.blob);
}

void fields(auto& wire, Is<RegionsRemoved> auto& m) {
  wire.number("generation", m.generation);
  wire.numbers("region", m.regions, kRegionsMax);
}

void fields(auto& wire, Is<Announce> auto& m) {
  constexpr auto kSpaces = static_cast<std::uint32_t>(kIndexSpacesCount);
  wire.number("room", m.room);
  wire.number("generation", m.generation);
  wire.number("deadline_ms", m.deadline_ms);
  std::uint32_t spaces = kSpaces;
  wire.number("index space count", spaces);
  if (spaces != kSpaces) {
    return wire.refuse(ErrorCode::io, "index space count " + std::to_string(spaces) + " where this version has " + std::to_string(kSpaces));
  }
  for (auto& list : m.indices) wire.numbers("index", list, kIndicesMax);
}

void fields(auto& wire, Is<Abort> auto& m) {
  wire.number("room", m.room);
  wire.number("generation", m.generation);
  wire.number("code", m.code);
  wire.text("text", m.text);
}

void fields(auto& wire, Is<Quiesced> auto& m) {
  wire.number("room", m.room);
  wire.number("generation", m.generation);
}

void fields(auto& wire, Is<Goodbye> auto& m) {
  wire.number("code", m.code);
  wire.text("text", m.text);
}

/// An extension has no fields.
void visit_fields(auto& wire, const Message& message) {
  std::visit(
      [&wire](const auto& m) {
        if constexpr (!std::same_as<std::remove_cvref_t<decltype(m)>, Extension>) fields(wire, m);
      },
      message);
}

template <class Payload>
Result<Message> read_as(std::string_view name, std::span<const std::uint8_t> bytes) {
  Reader reader(bytes);
  Payload payload;
  fields(reader, payload);
  if (auto error = reader.finish()) return fail(error->within(name));
  return Message(std::move(payload));
}

}  // namespace

std::uint16_t type_of(const Message& message) noexcept {
  struct {
    FrameType operator()(const Hello&) const noexcept { return FrameType::hello; }
    FrameType operator()(const Ready&) const noexcept { return FrameType::ready; }
    FrameType operator()(const Heartbeat&) const noexcept { return FrameType::heartbeat; }
    FrameType operator()(const RegionsAdded&) const noexcept { return FrameType::regions_added; }
    FrameType operator()(const RegionsRemoved&) const noexcept { return FrameType::regions_removed; }
    FrameType operator()(const Announce&) const noexcept { return FrameType::announce; }
    FrameType operator()(const Abort&) const noexcept { return FrameType::abort; }
    FrameType operator()(const Quiesced&) const noexcept { return FrameType::quiesced; }
    FrameType operator()(const Goodbye&) const noexcept { return FrameType::goodbye; }
    FrameType operator()(const Extension& m) const noexcept { return static_cast<FrameType>(kExtensionTypeFirst + m.tag); }
  } type;
  return static_cast<std::uint16_t>(std::visit(type, message));
}

bool is_known(std::uint16_t type) noexcept {
  return (type >= static_cast<std::uint16_t>(FrameType::hello) && type <= static_cast<std::uint16_t>(FrameType::goodbye)) ||
         type >= kExtensionTypeFirst;
}

std::string describe_type(std::uint16_t type) {
  if (type >= kExtensionTypeFirst) return "extension " + std::to_string(type - kExtensionTypeFirst);
  constexpr std::array<std::string_view, 9> kNames = {"hello",    "ready", "heartbeat", "regions_added", "regions_removed",
                                                      "announce", "abort", "quiesced",  "goodbye"};
  if (is_known(type)) return std::string(kNames[type - 1u]);
  return "type " + std::to_string(type);
}

std::uint32_t payload_bytes_max(std::uint16_t type) noexcept {
  if (type >= kExtensionTypeFirst) return kBlobBytesMax;
  switch (static_cast<FrameType>(type)) {
    case FrameType::ready: return kCountBytes + kTextBytesMax;
    case FrameType::heartbeat: return 8;
    case FrameType::regions_added: return 8 + kCountBytes + kRegionsMax * kRegionBytes + kCountBytes + kBlobBytesMax;
    case FrameType::regions_removed: return 8 + kCountBytes + kRegionsMax * kRegionIdBytes;
    case FrameType::abort: return 16 + kCountBytes + kTextBytesMax;
    case FrameType::quiesced: return 12;
    case FrameType::goodbye: return 4 + kCountBytes + kTextBytesMax;
    case FrameType::hello:
    case FrameType::announce: break;
  }
  return kPayloadBytesMax;
}
static_assert(8 + kCountBytes + kRegionsMax * kRegionBytes + kCountBytes + kBlobBytesMax <= kPayloadBytesMax);
static_assert(std::uint64_t{kIndicesMax} * kIndexBytes + 24 + kIndexSpacesCount * kCountBytes <= kPayloadBytesMax, "one full list fits");

Result<std::size_t> measure_payload(const Message& message) {
  if (const auto* extension = std::get_if<Extension>(&message)) {
    if (extension->tag > kExtensionTagMax) return fail(ErrorCode::out_of_range, beyond("extension", "tag", extension->tag, kExtensionTagMax));
    const std::size_t length = extension->bytes.size();
    if (length > kBlobBytesMax) return fail(ErrorCode::out_of_range, beyond("extension", "length", length, kBlobBytesMax));
    return length;
  }
  Measure measure;
  visit_fields(measure, message);
  if (measure.error()) return fail(measure.error()->within(name_of(message)));
  const std::size_t length = measure.bytes_count();
  if (length > kPayloadBytesMax) return fail(ErrorCode::out_of_range, beyond(name_of(message), "payload length", length, kPayloadBytesMax));
  return length;
}

void append_payload(const Message& message, std::vector<std::uint8_t>& bytes) {
  Writer writer(bytes);
  visit_fields(writer, message);
  if (const auto* extension = std::get_if<Extension>(&message)) writer.raw("bytes", extension->bytes);
}

Result<Message> read_payload(std::uint16_t type, bool critical, std::span<const std::uint8_t> bytes) {
  if (type >= kExtensionTypeFirst) {
    return Message(Extension{static_cast<std::uint16_t>(type - kExtensionTypeFirst), critical, {bytes.begin(), bytes.end()}});
  }
  const std::string name = describe_type(type);
  switch (static_cast<FrameType>(type)) {
    case FrameType::hello: return read_as<Hello>(name, bytes);
    case FrameType::ready: return read_as<Ready>(name, bytes);
    case FrameType::heartbeat: return read_as<Heartbeat>(name, bytes);
    case FrameType::regions_added: return read_as<RegionsAdded>(name, bytes);
    case FrameType::regions_removed: return read_as<RegionsRemoved>(name, bytes);
    case FrameType::announce: return read_as<Announce>(name, bytes);
    case FrameType::abort: return read_as<Abort>(name, bytes);
    case FrameType::quiesced: return read_as<Quiesced>(name, bytes);
    case FrameType::goodbye: return read_as<Goodbye>(name, bytes);
  }
  return fail(ErrorCode::unsupported, "message of unknown " + name);
}

}  // namespace kvferry::session
