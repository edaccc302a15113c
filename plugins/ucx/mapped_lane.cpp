#include "mapped_lane.h"

#include <new>

namespace kvferry::ucx {

Result<std::shared_ptr<MapOwner>> MapOwner::create() {
  auto page = SharedMemory::create("kvferry-control", kControlPageBytes);
  if (!page) return fail(std::move(page.error()));
  auto* control = new (page->mapping.address()) ControlPage;
  control->busy.store(0, std::memory_order_relaxed);
  control->epoch.store(1, std::memory_order_seq_cst);
  return std::shared_ptr<MapOwner>(new MapOwner(std::move(*page)));
}

std::uint64_t MapOwner::raise_epoch() noexcept {
  page().epoch.store(++epoch_, std::memory_order_seq_cst);
  return epoch_;
}

void MapOwner::close() noexcept { page().epoch.store(epoch_ | kEpochClosed, std::memory_order_seq_cst); }

bool MapOwner::proved(std::uint64_t busy) const noexcept {
  if (busy % 2 == 0 || page().busy.load(std::memory_order_seq_cst) != busy) return true;
  return writer_ != nullptr && writer_->ended();
}

Result<std::unique_ptr<MappedWriter>> MappedWriter::open(std::uint32_t process, const SharedFile& control) {
  if (control.present == 0 || control.length_bytes < sizeof(ControlPage)) return fail(ErrorCode::unsupported, "the other side offers no control page");
  auto page = attach(process, control);
  if (!page) return fail(std::move(page.error()));
  return std::unique_ptr<MappedWriter>(new MappedWriter(std::move(*page)));
}

bool MappedWriter::enter() noexcept {
  page().busy.store(++busy_, std::memory_order_seq_cst);
  if (page().epoch.load(std::memory_order_seq_cst) == epoch_) return true;
  leave();
  return false;
}

void MappedWriter::leave() noexcept { page().busy.store(++busy_, std::memory_order_release); }

}  // namespace kvferry::ucx
