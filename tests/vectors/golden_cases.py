"""Golden cases from the declared semantics: what a caller states decides which case is served and which is refused.

Written apart from the library, as slowly and plainly as it goes: every list is a dictionary from what a buffer is to its pointer, and a slice asks
for the keys of the source in the target. Each generator yields a case; a case that the declarations do not allow is a hazard without `correct`.
"""

LARGE = 1 << 63  # pointers lie on both sides of it


def case(name, arguments, expected):
    """expected: a value, or None for a refusal."""
    if expected is None:
        return {"name": name, "input": arguments, "output": {"never": "this"}, "hazard": "does not fit its declaration"}
    return {"name": name, "input": arguments, "output": expected}


def damage(random, pointers):
    """A list with one entry more or less, or the same again."""
    kind = random.choice(["none"] * 9 + ["short", "long", "empty"])
    if kind == "short" and pointers:
        drop = random.randrange(len(pointers))
        return pointers[:drop] + pointers[drop + 1:]
    if kind == "long":
        return pointers + [LARGE + 12345]
    return [] if kind == "empty" else pointers


def number(keys, base):
    return {key: base + place for place, key in enumerate(keys)}


# ---- MHA


def mha_keys(first, layers, drafts):
    return ([("k", layer) for layer in range(first, first + layers)] + [("v", layer) for layer in range(first, first + layers)] +
            [("k", "draft", layer) for layer in range(drafts)] + [("v", "draft", layer) for layer in range(drafts)])


def mha(random, name):
    model, target_drafts = random.randint(0, 9), random.choice([0, 0, 1, 2, 9])
    start = random.randint(0, model) if random.random() < 0.9 else random.randint(-1, 10)
    layers = random.randint(0, model - start) if start <= model and random.random() < 0.8 else random.randint(0, 9)
    declared = random.random() < 0.5
    drafts = random.choice([0, 0, 1, 2]) if declared else 0
    source = list(number(mha_keys(start, layers, drafts), 1000).values())
    target = list(number(mha_keys(0, model, target_drafts), LARGE - 20).values())
    source, target = damage(random, source), damage(random, target)
    arguments = {"start_layer": start, "src": source, "dst": target, "dst_layout": {"target_layers": model, "draft_layers": target_drafts}}
    if declared:
        arguments["src_layout"] = {"target_layers": layers, "draft_layers": drafts}
    elif len(source) % 2 == 0:
        layers = len(source) // 2
    fits = (start >= 0 and len(target) == 2 * (model + target_drafts) and len(source) == 2 * (layers + drafts) and drafts <= target_drafts and
            (layers == 0 or start + layers <= model) and (source or not target))
    if not fits:
        return case(name, arguments, None)
    here, there = dict(zip(mha_keys(start, layers, drafts), source)), dict(zip(mha_keys(0, model, target_drafts), target))
    output = {"layers": layers + drafts}
    for half in ("k", "v"):
        keys = [key for key in here if key[0] == half]
        output["src_" + half], output["dst_" + half] = [here[key] for key in keys], [there[key] for key in keys]
    return case(name, arguments, output)


# ---- MLA, plain and compressed


def compressed_keys(state_type, first, layers, drafts, ratios, window_end):
    span = range(first, first + layers)

    def of(word, ratio):
        return [(word, layer) for layer in span if ratios[layer] == ratio]
    window = [("window", layer) for layer in span if layer < window_end] if layers else [("window", "draft", layer) for layer in range(drafts)]
    return {None: of("c4", 4) + of("indexer", 4) + of("c128", 128), "swa": window + of("c4", 4) + of("indexer", 4), "swa_ring": window,
            "c128_state": of("c128", 128)}[state_type]


def mla(random, name):
    """Plain lists with layouts on both sides."""
    def layout():
        return {"first_layer": random.randint(0, 5), "target_layers": random.randint(0, 8), "draft_layers": random.choice([0, 0, 1, 2])}

    def keys(each):
        return [each["first_layer"] + layer for layer in range(each["target_layers"])] + [("draft", layer) for layer in range(each["draft_layers"])]
    here, there = layout(), layout()
    if random.random() < 0.7:
        there.update(first_layer=0, target_layers=random.randint(6, 14))
    source = damage(random, list(number(keys(here), 5).values()))
    target = damage(random, list(number(keys(there), LARGE).values()))
    arguments = {"start_layer": here["first_layer"], "end_layer": None, "ratios": None, "state_type": random.choice([None, "dsa"]), "src": source,
                 "dst": target, "src_layout": here, "dst_layout": there}
    if len(source) != len(keys(here)) or len(target) != len(keys(there)) or any(key not in keys(there) for key in keys(here)):
        return case(name, arguments, None)
    pointers = dict(zip(keys(there), target))
    return case(name, arguments, {"src": source, "dst": [pointers[key] for key in keys(here)], "count": len(source)})


def random_ratios(random):
    ratios = [random.choice([0, 4, 128]) for _ in range(random.randint(1, 12))]
    if random.random() < 0.1:
        ratios[random.randrange(len(ratios))] = random.choice([1, 2, 8])
    return ratios


def compressed_slice(state_type, here, source, there, target, ratios):
    """Tries every place where the windows may end; None where no length fits. here, there: (first, layers, drafts)."""
    known = all(ratio in (0, 4, 128) for ratio in ratios)
    inside = all(first + layers <= len(ratios) for first, layers, _ in (here, there) if layers)
    mixed = any(layers and drafts for _, layers, drafts in (here, there)) and state_type in ("swa", "swa_ring")
    contained = here[1] == 0 or (there[0] <= here[0] and here[0] + here[1] <= there[0] + there[1])
    if not known or not inside or mixed or not contained or here[2] > there[2]:
        return None
    ends = [there[0] + there[1]]
    if there[1] and ends[0] == len(ratios):
        ends.append(ends[0] - 1)
    if state_type == "swa":
        ends.append(there[0])
    for end in ends:
        ours, theirs = compressed_keys(state_type, *here, ratios, end), compressed_keys(state_type, *there, ratios, end)
        if len(theirs) == len(target):
            pointers = dict(zip(theirs, target))
            return {"src": source, "dst": [pointers[key] for key in ours]} if len(ours) == len(source) else None
    return None


def compressed_lists(random, state_type, here, there, ratios):
    end = random.choice([len(ratios), len(ratios), len(ratios) - 1, len(ratios) - 2, 0])
    ratios = ratios + [0] * 20  # stages may be wrong on purpose
    source = list(number(compressed_keys(state_type, *here, ratios, end), 77).values())
    target = list(number(compressed_keys(state_type, *there, ratios, end), LARGE - 3).values())
    return damage(random, source), damage(random, target)


def compressed_mla(random, name):
    """No layouts: the ratio list is the declaration."""
    ratios, state_type = random_ratios(random), random.choice([None, "swa", "swa_ring", "c128_state"])
    start, end = random.randint(0, len(ratios)), random.randint(0, len(ratios) + 1)
    here, there = (start, max(end - start, 0), 0), (0, len(ratios), 0)
    source, target = compressed_lists(random, state_type, here, there, ratios)
    stated_end = random.choice([end] * 9 + [None])
    arguments = {"start_layer": start, "end_layer": stated_end, "ratios": ratios, "state_type": state_type, "src": source, "dst": target}
    fits = stated_end is not None and start < end
    return case(name, arguments, compressed_slice(state_type, here, source, there, target, ratios) if fits else None)


def compressed_mla_with_layouts(random, name):
    ratios, state_type = random_ratios(random), random.choice([None, "swa", "swa_ring", "c128_state"])
    layers = len(ratios)

    def side():
        first = random.randint(0, layers)
        return random.choice([(first, random.randint(0, layers - first + 1), 0), (0, layers, 0), (0, max(layers - 1, 0), 0),
                              (layers, 0, random.randint(0, 2)), (0, layers, 1)])

    here, there = side(), side()
    if random.random() < 0.3:
        here = there
    source, target = compressed_lists(random, state_type, here, there, ratios)

    def layout(each):
        return {"first_layer": each[0], "target_layers": each[1], "draft_layers": each[2]}
    arguments = {"start_layer": here[0], "end_layer": here[0] + here[1], "ratios": ratios, "state_type": state_type, "src": source, "dst": target,
                 "src_layout": layout(here), "dst_layout": layout(there)}
    expected = compressed_slice(state_type, here, source, there, target, ratios)
    return case(name, arguments, expected and {**expected, "count": len(source)})


# ---- pairs, runs, blocks, pages


def entry_pairs(random, name):
    source, target = ([random.randint(0, 5) for _ in range(random.randint(0, 7))] for _ in range(2))
    fallback = random.random() < 0.3
    n_src, n_dst = (len(each) if random.random() < 0.9 else len(each) + 1 for each in (source, target))
    if random.random() < 0.3:
        source = []
    if random.random() < 0.3:
        target = []
    arguments = {"src_layer_ids": source, "dst_layer_ids": target, "n_src": n_src, "n_dst": n_dst, "allow_positional_fallback": fallback}
    positional = [[place, place] for place in range(n_src)] if n_src == n_dst or (fallback and n_src < n_dst) else None
    if n_src == 0 and not source:
        expected = []
    elif source and target:
        unused, expected = list(enumerate(target)), []
        for place, layer in enumerate(source):
            found = next((each for each in unused if each[1] == layer), None)
            if expected is None or found is None:
                expected = None
                continue
            unused.remove(found)
            expected.append([place, found[0]])
        if len(source) != n_src or len(target) != n_dst:
            expected = None
    elif bool(source) != bool(target) and not fallback:
        expected = None
    else:
        expected = positional
    return case(name, arguments, expected)


def state_component(random, name):
    source, target = ([random.choice(["swa", "swa_ring", "c128_state"]) for _ in range(random.randint(0, 4))] for _ in range(2))
    required = random.random() < 0.3
    index = random.randint(0, max(len(source) - 1, 0))
    if not target:
        expected = None if required else index
    elif not source:
        expected = None
    else:
        places = [place for place, word in enumerate(target) if word == source[index]]
        occurrence = source[:index + 1].count(source[index]) - 1
        expected = places[occurrence] if occurrence < len(places) else None
    return case(name, {"src_state_types": source, "dst_state_types": target, "src_index": index, "require_metadata": required}, expected)


def random_pages(random, count, distinct):
    pages = []
    while len(pages) < count:
        first = random.choice([random.randint(0, 300), random.randint(1 << 31, 1 << 40)])
        pages += range(first, first + random.randint(1, 5))
    pages = pages[:count]
    return pages if not distinct or len(set(pages)) == count else random_pages(random, count, distinct)


def runs(source, target):
    groups = []
    for pair in zip(source, target):
        if groups and pair == (groups[-1][-1][0] + 1, groups[-1][-1][1] + 1):
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return groups


def damaged_pages(random, pages):
    if pages and random.random() < 0.15:
        return pages[:-1] if random.random() < 0.5 else pages[:-1] + [-1 - pages[-1]]
    return pages


def group(random, name):
    count = random.randint(0, 20)
    source, target = damaged_pages(random, random_pages(random, count, False)), damaged_pages(random, random_pages(random, count, False))
    fits = len(source) == len(target) and all(page >= 0 for page in source + target)
    groups = runs(source, target)
    expected = {"src_groups": [[pair[0] for pair in each] for each in groups], "dst_groups": [[pair[1] for pair in each] for each in groups]}
    return case(name, {"src": source, "dst": target}, expected if fits else None)


def block_plan(random, name):
    count = random.randint(0, 20)
    source, target = damaged_pages(random, random_pages(random, count, False)), damaged_pages(random, random_pages(random, count, True))
    layers = [[random.choice([1 << 20, LARGE, LARGE + 4097]) + (layer << 50), random.choice([1 << 21, LARGE - 8192, LARGE]) + (layer << 50),
               random.choice([64, 1024, 73728])] for layer in range(random.randint(0, 3))]
    if layers and random.random() < 0.15:
        layers[0][random.randrange(2)] = (1 << 64) - 100
    blocks, fits = [], len(source) == len(target) and all(page >= 0 for page in source + target)
    for source_base, target_base, item in layers:
        for each in runs(source, target):
            blocks.append([source_base + each[0][0] * item, target_base + each[0][1] * item, len(each) * item])
        for base, pages in ((source_base, source), (target_base, target)):
            fits = fits and base + (max(pages, default=0) + 1) * item <= 1 << 64
    return case(name, {"layers": layers, "src_pages": source, "dst_pages": target}, blocks if fits else None)


def page_helper(random, name):
    function = random.choice(["kv_to_page_num", "kv_to_page_indices", "filter_kv_indices_for_cp_rank", "page_indices_to_cp_rank_page_indices",
                              "filter_kv_indices_for_dcp_rank", "swa_window_start", "swa_ring_rows"])
    arguments, expected = globals()["helper_" + function](random)
    return case(name, {"function": function, **arguments}, expected)


def helper_kv_to_page_num(random):
    tokens, page = random.choice([random.randint(0, 500), LARGE]), random.choice([0, 1, 16, 64])
    return {"num_tokens": tokens, "page_size": page}, -(-tokens // page) if page else None


def helper_kv_to_page_indices(random):
    page, pages = random.choice([1, 4, 16]), [random.randint(0, 1 << 33) for _ in range(random.randint(0, 4))]
    tokens = [row for each in pages for row in range(each * page, each * page + page)]
    tokens = tokens[:len(tokens) - random.randint(0, page - 1)] if tokens else tokens
    if tokens and page > 1 and random.random() < 0.4:
        tokens[random.randrange(len(tokens))] += random.choice([-1, 1, 2])
    expected = []
    for begin in range(0, len(tokens), page):
        part = tokens[begin:begin + page]
        if part[0] < 0 or part[0] % page or part != list(range(part[0], part[0] + len(part))):
            return {"token_locs": tokens, "page_size": page}, None
        expected.append(part[0] // page)
    return {"token_locs": tokens, "page_size": page}, expected


def helper_filter_kv_indices_for_cp_rank(random):
    total, size = random.randint(0, 20), random.randint(1, 5)
    rank, begin = random.randint(0, size), random.randint(0, total)
    end = random.randint(begin, total)
    pages = damaged_pages(random, [random.randint(0, 1000) for _ in range(begin, end)])
    arguments = {"page_indices": pages, "slice": [begin, end], "total_pages": total, "cp_rank": rank, "cp_size": size}
    if rank == size or len(pages) != end - begin or any(page < 0 for page in pages):
        return arguments, None
    owner = [each for each in range(size) for _ in range(total // size + (1 if each < total % size else 0))]
    own = [position for position in range(begin, end) if owner[position] == rank]
    return arguments, {"page_indices": [pages[position - begin] for position in own], "slice": [own[0], own[-1] + 1] if own else [begin, begin]}


def helper_page_indices_to_cp_rank_page_indices(random):
    arguments, expected = helper_filter_kv_indices_for_cp_rank(random)
    while arguments["slice"][0] != 0:
        arguments, expected = helper_filter_kv_indices_for_cp_rank(random)
    end = arguments.pop("slice")[1]
    if expected is None and len(arguments["page_indices"]) != end:  # without a slice, a shorter list is a shorter chunk
        return helper_page_indices_to_cp_rank_page_indices(random)
    return arguments, expected and expected["page_indices"]


def helper_filter_kv_indices_for_dcp_rank(random):
    size, tokens = random.randint(1, 5), [random.randint(0, 1 << 35) for _ in range(random.randint(0, 12))]
    rank = random.randint(0, size)
    kept = [token // size for token in tokens if token % size == rank]
    return {"token_locs": tokens, "dcp_size": size, "dcp_rank": rank}, None if rank == size else kept


def helper_swa_window_start(random):
    page, window, tokens = random.choice([1, 16, 64]), random.choice([1, 100, 128]), random.randint(0, 600)
    start = max(0, tokens - window) // page * page
    prefix = random.choice([0, start, max(start - page, 0), start + page, start + 1])
    pages = -(-(tokens - start) // page)
    output = {"prefill_start": start, "decode_start": start, "prefill_pages": pages, "decode_pages": pages}
    return {"seq_len": tokens, "window": window, "page_size": page, "decode_prefix_len": prefix}, output if prefix <= start else None


def helper_swa_ring_rows(random):
    slot, tokens, window, stride = random.randint(0, 1 << 40), random.randint(0, 40), random.randint(1, 12), random.randint(1, 14)
    rows = [slot * stride + position % stride for position in range(max(0, tokens - window), tokens)]
    return {"req_pool_idx": slot, "seq_len": tokens, "window": window, "ring_stride": stride}, rows if len(set(rows)) == len(rows) else None


GENERATORS = {
    "mha_kv_ptrs_with_pp.json": [mha],
    "mla_kv_ptrs_with_pp.json": [mla, compressed_mla_with_layouts],
    "mla_slice_ptrs_for_pp.json": [compressed_mla],
    "transfer_entry_pairs.json": [entry_pairs],
    "state_component_index.json": [state_component],
    "group_concurrent_contiguous.json": [group],
    "generic_block_plan.json": [block_plan],
    "page_index_helpers.json": [page_helper],
}
