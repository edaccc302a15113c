// Pools from a model's config.json and the way the two sides are cut.
//
// Errors that any cut would have (unknown kind, no dtype, a page size that cannot be) are found on the whole model first and name that option; what
// is left belongs to --prefill or --decode.
#include <algorithm>
#include <filesystem>

#include "layout_parts.h"

namespace kvferry::transfer_check {
namespace {

constexpr std::uint32_t kPageSizeDefault = 64;
constexpr std::uint32_t kPageSizeCompressed = 256;  // Two rows of ratio 128 per page: the only size the kind exists in.
constexpr std::uint64_t kRequestSlotsSource = 4;
constexpr std::uint64_t kRequestSlotsTarget = 5;  // Another number than the source's, so that a mixed-up count shows.
constexpr std::uint64_t kListedPagesFree = 1024;  // A page list may name pages up to here without --pool-pages.
constexpr std::uint64_t kPagesMax = 1u << 30;

struct Numbers {
  std::uint64_t page_size = 0, layers = 0, draft_layers = 0, pool_pages = 0;
};

Outcome<Numbers> read_numbers(const Request& request, const ModelDescription& model) {
  const auto page_size_default = model.kind == ModelKind::compressed_mla ? kPageSizeCompressed : kPageSizeDefault;
  auto page_size = parse_number("--page-size", request.text("--page-size", std::to_string(page_size_default)), {1, 1u << 20});
  auto layers = parse_number("--layers", request.text("--layers", std::to_string(model.layers)), {1, UINT32_MAX});
  auto draft = parse_number("--draft-layers", request.text("--draft-layers", "0"), {0, 64});
  auto pages = parse_number("--pool-pages", request.text("--pool-pages", "0"), {request.has("--pool-pages") ? 1u : 0u, kPagesMax});
  if (!page_size) return tl::unexpected(page_size.error());
  if (!layers) return tl::unexpected(layers.error());
  if (!draft) return tl::unexpected(draft.error());
  if (!pages) return tl::unexpected(pages.error());
  if (*layers > model.layers) {
    return wrong_option("--layers", std::to_string(*layers), "the model has " + std::to_string(model.layers) + " layers",
                        "use at most --layers=" + std::to_string(model.layers));
  }
  return Numbers{*page_size, *layers, *draft, *pages};
}

Outcome<PoolOptions> read_pool_options(const Request& request, const Numbers& numbers) {
  PoolOptions options;
  options.page_size = static_cast<std::uint32_t>(numbers.page_size);
  options.layers = static_cast<std::uint32_t>(numbers.layers);
  options.draft_layers = static_cast<std::uint32_t>(numbers.draft_layers);
  options.kv_layout = request.text("--kv-layout");
  if (request.has("--dtype")) {
    auto dtype = parse_dtype(request.text("--dtype"));
    if (!dtype) return because(dtype.error(), "--dtype=" + request.text("--dtype"), "use bf16, fp16 or fp8", "--dtype");
    options.dtype = *dtype;
  }
  return options;
}

/// The options that decide about the whole model's pool, as the user wrote them: which of them is wrong only their sum shows.
std::string given_options(const Request& request) {
  std::string text;
  for (const std::string_view option : {"--model-config", "--page-size", "--dtype", "--kv-layout", "--layers", "--draft-layers"}) {
    if (request.has(option)) text += (text.empty() ? "" : " ") + std::string(option) + "=" + request.text(option);
  }
  return text;
}

/// Layers of every stage of one side.
Outcome<Parallelism> cut_side(const ParallelText& text, std::uint32_t layers) {
  Parallelism cut;
  cut.tp = text.tp;
  if (text.layers.empty()) {
    auto stages = split_stages(layers, text.stages);
    if (!stages) {
      return because(stages.error(), text.option + "=" + text.text, "use at most pp=" + std::to_string(layers), text.option);
    }
    cut.pp = *stages;
    return cut;
  }
  std::uint64_t sum = 0;
  for (const auto stage : text.layers) sum += stage;
  if (sum != layers) {
    return wrong_option(text.option, text.text,
                        "the stages of pp add up to " + std::to_string(sum) + " layers, " + std::to_string(layers) + " are in use",
                        "give every layer to one stage, or set --layers=" + std::to_string(sum));
  }
  cut.pp = text.layers;
  return cut;
}

/// Pages of the side's pools: the request's and a surplus that must stay untouched; different on the two sides.
Outcome<std::uint64_t> pages_of(const Side& side, std::uint64_t wanted, std::uint64_t pool_pages, const std::optional<PageList>& list) {
  const std::uint64_t part = side.is_prefill ? 8 : 4;
  const std::uint64_t usual = wanted + (wanted + part - 1) / part + 1;
  if (pool_pages == 0) {
    if (!list) return usual;
    const std::uint64_t named = *std::max_element(list->pages.begin(), list->pages.end());
    return std::max(usual, std::min(named, std::max(kListedPagesFree, 4 * wanted) - 1) + 1);
  }
  if (pool_pages < wanted) {
    return wrong_option("--pool-pages", std::to_string(pool_pages), "the request has " + std::to_string(wanted) + " pages",
                        "use at least --pool-pages=" + std::to_string(wanted));
  }
  return pool_pages;
}

Outcome<void> build_side(const ModelDescription& model, PoolOptions options, const ParallelText& text, Side& ret) {
  auto cut = cut_side(text, *options.layers);
  if (!cut) return tl::unexpected(cut.error());
  options.request_slots = ret.is_prefill ? kRequestSlotsSource : kRequestSlotsTarget;
  ret.tp_size = cut->tp;
  ret.parallel_text = "tp=" + std::to_string(cut->tp) + ",pp=" + std::to_string(cut->pp.size());
  const auto wrong_cut = [&text](const Error& error) { return because(error, text.option + "=" + text.text, {}, text.option); };
  auto whole = build_pool(model, options, {cut->tp, {*options.layers}}, 0, 0);
  if (!whole) return wrong_cut(whole.error());
  ret.whole = std::move(*whole);
  for (std::uint32_t tp = 0; tp < cut->tp; ++tp) {
    for (std::uint32_t pp = 0; pp < cut->pp.size(); ++pp) {
      auto pool = build_pool(model, options, *cut, tp, pp);
      if (!pool) return wrong_cut(pool.error());
      auto rank = make_rank(ret, tp, pp, std::move(*pool));
      if (!rank) return tl::unexpected(rank.error());
      ret.ranks.push_back(std::move(*rank));
    }
  }
  return {};
}

}  // namespace

Outcome<void> sides_from_config(const Request& request, const RequestInput& input, Layout& ret) {
  const std::string path = request.text("--model-config");
  auto text = read_file("--model-config", path);
  if (!text) return tl::unexpected(text.error());
  ret.model = std::filesystem::path(path).stem().string();
  auto model = parse_model_config(*text, ret.model);
  if (!model) return because(model.error(), "--model-config=" + path, "docs/status.md lists the kinds this version lays out", "--model-config");
  auto numbers = read_numbers(request, *model);
  if (!numbers) return tl::unexpected(numbers.error());
  auto options = read_pool_options(request, *numbers);
  if (!options) return tl::unexpected(options.error());
  auto prefill = parse_parallel("--prefill", request.text("--prefill", "tp=1,pp=1"));
  auto decode = parse_parallel("--decode", request.text("--decode", "tp=1,pp=1"));
  if (!prefill) return tl::unexpected(prefill.error());
  if (!decode) return tl::unexpected(decode.error());

  auto whole = build_whole_pool(*model, *options);
  if (!whole) return because(whole.error(), given_options(request), "change one of these options", "--model-config");
  auto pages = request_pages(input, numbers->page_size);
  if (!pages) return tl::unexpected(pages.error());
  auto counts = request_indices(*whole, request_tokens(input, numbers->page_size), 0);
  if (!counts) return because(counts.error(), "count the indices of the request");
  for (Side* side : {&ret.source, &ret.target}) {
    auto pool_pages = pages_of(*side, *pages, numbers->pool_pages, side->is_prefill ? input.source_pages : input.target_pages);
    if (!pool_pages) return tl::unexpected(pool_pages.error());
    options->pages = *pool_pages;
    const std::uint64_t part = side->is_prefill ? 8 : 4;
    options->window_pages = counts->window_pages + (counts->window_pages + part - 1) / part + 1;
    if (auto built = build_side(*model, *options, side->is_prefill ? *prefill : *decode, *side); !built) return built;
  }
  return {};
}

}  // namespace kvferry::transfer_check
