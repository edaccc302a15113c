#include "layout.h"

#include "layout_parts.h"

namespace kvferry::transfer_check {
namespace {

constexpr std::uint64_t kTokensDefault = 1000;
constexpr std::uint64_t kTokensMax = 1u << 30;

Outcome<void> refuse_together(const Request& request, std::string_view option, const std::vector<std::string_view>& others, std::string_view why) {
  for (const auto other : others) {
    if (request.has(other)) {
      return wrong_option(other, request.text(other), "cannot stand beside " + std::string(option) + ": " + std::string(why),
                          "leave one of the two out");
    }
  }
  return {};
}

Outcome<void> need_partner(const Request& request, std::string_view option, std::string_view partner) {
  if (request.has(option) && !request.has(partner)) {
    return wrong_option(option, request.text(option), "stands alone", "add " + std::string(partner) + "=FILE");
  }
  return {};
}

Outcome<void> check_sources(const Request& request) {
  const bool one_file = request.has("--pool");
  const bool two_files = request.has("--source-pool") || request.has("--target-pool");
  if (one_file) {
    if (auto alone = refuse_together(request, "--pool", {"--source-pool", "--target-pool"}, "it describes both sides"); !alone) return alone;
  }
  for (const auto& [option, partner] : {std::pair<std::string_view, std::string_view>{"--source-pool", "--target-pool"},
                                        {"--target-pool", "--source-pool"},
                                        {"--source-pages", "--target-pages"},
                                        {"--target-pages", "--source-pages"}}) {
    if (auto paired = need_partner(request, option, partner); !paired) return paired;
  }
  if (one_file || two_files) {
    return refuse_together(
        request, one_file ? "--pool" : "--source-pool",
        {"--model-config", "--page-size", "--dtype", "--kv-layout", "--layers", "--draft-layers", "--prefill", "--decode", "--pool-pages"},
        "a pool file is the whole layout of one rank");
  }
  if (!request.has("--model-config")) {
    return wrong_option("--model-config", {}, "no layout is given", "add --model-config=FILE, --pool=FILE, or --source-pool=FILE --target-pool=FILE");
  }
  return {};
}

Outcome<std::optional<PageList>> page_list(const Request& request, std::string_view option) {
  if (!request.has(option)) return std::optional<PageList>{};
  auto list = read_page_list(option, request.text(option));
  if (!list) return tl::unexpected(list.error());
  return std::optional<PageList>(std::move(*list));
}

Outcome<RequestInput> read_input(const Request& request) {
  RequestInput input;
  auto tokens = parse_number("--tokens", request.text("--tokens", std::to_string(kTokensDefault)), {1, kTokensMax});
  auto run_length = parse_number("--run-length", request.text("--run-length", "1"), {1, kTokensMax});
  auto seed = parse_number("--seed", request.text("--seed", "1"), {});
  auto source = page_list(request, "--source-pages");
  auto target = page_list(request, "--target-pages");
  if (!tokens) return tl::unexpected(tokens.error());
  if (!run_length) return tl::unexpected(run_length.error());
  if (!seed) return tl::unexpected(seed.error());
  if (!source) return tl::unexpected(source.error());
  if (!target) return tl::unexpected(target.error());
  if (*source && (*source)->pages.size() != (*target)->pages.size()) {
    return wrong_option(
        "--target-pages", (*target)->path,
        "the lists have unequal lengths: source " + std::to_string((*source)->pages.size()) + ", target " + std::to_string((*target)->pages.size()),
        "give every source page its target page");
  }
  if (*source && request.has("--run-length")) {
    return wrong_option("--run-length", request.text("--run-length"), "cannot stand beside --source-pages: the files say where every page lies",
                        "leave one of the two out");
  }
  input.tokens = *tokens;
  input.tokens_given = request.has("--tokens");
  input.run_length = *run_length;
  input.seed = *seed;
  input.source_pages = std::move(*source);
  input.target_pages = std::move(*target);
  return input;
}

}  // namespace

Outcome<Layout> make_layout(const Request& request) {
  if (auto checked = check_sources(request); !checked) return tl::unexpected(checked.error());
  auto input = read_input(request);
  if (!input) return tl::unexpected(input.error());
  Layout layout;
  layout.source.is_prefill = true;
  layout.request.run_length = input->run_length;
  layout.request.seed = input->seed;
  auto sides = request.has("--model-config") ? sides_from_config(request, *input, layout) : sides_from_files(request, layout);
  if (!sides) return tl::unexpected(sides.error());
  if (auto paired = pair_ranks(layout); !paired) return tl::unexpected(paired.error());
  if (auto placed = place_indices(*input, layout); !placed) return tl::unexpected(placed.error());
  return layout;
}

}  // namespace kvferry::transfer_check
