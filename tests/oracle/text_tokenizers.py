"""Trains tiny tokenizers with each family's split rules and records what the `tokenizers` library makes of a nasty corpus.

Writes tests/fixtures/text/<family>.tokenizer.json and <family>.cases.jsonl, one line a text:
  text, ids (with special tokens around it), plain (without), literal (special tokens in the text read as text),
  decoded (of ids), skipped (of ids, without special tokens).
Needs: pip install tokenizers==0.23.3
"""

import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).parent.parent / "fixtures" / "text"
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

TRAINING = [
    "The quick brown fox jumps over the lazy dog. It's what we've said they'll do, and I'm sure you're right: he'd agree.",
    "A mill race is the current of water that turns a water wheel, or the channel that leads the water to the wheel.",
    "for (int i = 0; i < n; ++i) {\n    sum += values[i];\n    if (sum > limit) return false;\n}\n",
    "def encode(text):\n    return [vocabulary[piece] for piece in split(text)]\n\n\nclass Tokenizer:\n    pass\n",
    "Der schnelle braune Fuchs springt über den faulen Hund. Straße, Größe, Übung, Mädchen.",
    "Le renard brun rapide saute par-dessus le chien paresseux. L'été, où ça, déjà, naïve.",
    "Быстрая коричневая лиса прыгает через ленивую собаку. Это было давно, и это правда.",
    "敏捷的棕色狐狸跳过了懒狗。水车的水流叫做磨坊水渠。今天天气很好。",
    "素早い茶色の狐がのろまな犬を飛び越える。今日は天気がいいですね。",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다. 오늘은 날씨가 좋다.",
    "الثعلب البني السريع يقفز فوق الكلب الكسول. 2023 2024 1000 100 10 42 3.14159",
    "In 1492 there were 365 days, 12 months and 52 weeks; 1,000,000 is 10^6. $19.99 (50% off!) \u2013 what?",
    "the water wheel and the other water wheels; then there, that, this, those, these, where, when, with, which",
]

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "a",
    "Hello world",
    " Hello  world ",
    "Hello, y'all! How are you 😁 ?我想在apple工作1314151天～",
    "I'M SURE YOU'LL SEE WE'VE DONE IT, HE'D SAY: 'tis what they're 'Re 'VE",
    "don't can't it's ’s ‘re 'ſ 'K",
    "1 12 123 1234 12345 123456 0x1F 3.14 1,000,000 ½ ² Ⅷ ٣٤٥ ৪২",
    "word123word 4x4 a1b2c3 v1.2.3-rc4",
    "   leading\n\n\n   three lines   \n \n \t \t\t  trailing   ",
    "line one\r\nline two\r\n\r\nline four\rline five",
    "    for (int i = 0; i < n; ++i) {\n\t\treturn a[i] != b->c && (d || !e);\n    }\n",
    "def f(x):\n    return x**2  # comment\n\n\nprint(f'{f(3)!r:>10}')",
    "https://example.com/path?query=a%20b&c=d#fragment user@example.org",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "text<|im_end|><|im_end|> more <|im_start <|im_end|",
    "<s>Hello</s> <s> </s>\n<unk>",
    "é e\u0301 Å A\u030a ﬁ ① Ａ ㎏ ｱ ǅ",
    "a\u0301\u0327\u0323 b\u0327\u0301 q\u0323\u0307 q\u0307\u0323 \u0301start",
    "नमस्ते दुनिया สวัสดีชาวโลก ສະບາຍດີ",
    "שלום עולם مرحبا بالعالم",
    "日本語のテキスト、句読点。「引用」　全角スペース",
    "한국어 텍스트와 각 조합",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 ✅ ❤️ 🧑🏿‍🚀",
    "zero\u200bwidth\u200cjoin\u200der\ufeffbom\u00a0nbsp\u2009thin\u3000wide\u0085nel\u2028ls\u180emvs",
    "tabs\tand\x0bvertical\x0cfeed\x1fus\x00nul\x7fdel",
    "$100 €50 £20 ¥1000 ₹5 +−×÷=≠≤≥ ∑∫√∞ ←→↑↓",
    "....... ----- ===== ***** !!!??? ;;;:::",
    "\"quotes\" 'single' “curly” ‘curly’ «guillemets» `code` ```block```",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case __dunder__",
    "ÀÉÎÕÜ àéîõü ĀĒĪŌŪ Łódź Þórr Ħal ŒUVRE œuvre İstanbul ı",
    "ΑΒΓ αβγ ΣΑΣ σας АБВ абв ЁЖ ёж",
    "𝕳𝖊𝖑𝖑𝖔 𝟙𝟚𝟛 𐍈𐌰 𠀀𠀁",
    "thethethethethe waterwaterwater wheelwheelwheel",
    "\n\n\n\n\n\n\n\n",
    "a\n b\n  c\n   d\n    e",
    "▁already ▁▁ marked▁",
    "<0x41><0x0A> \\n \\u0041 &amp; %41",
    "mixed العربية and English والرقم 42 together",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "\u0300\u0301\u0302",
    "word\u0301s",
    "x" * 200,
    "ab" * 150,
    " " * 100 + "end",
    "the water wheel " * 12,
]

RANGES = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x500), (0x590, 0x600), (0x600, 0x700), (0x900, 0x980),
          (0xE00, 0xE80), (0x1100, 0x1200), (0x1E00, 0x1F00), (0x2000, 0x2070), (0x2070, 0x20D0), (0x2150, 0x2190), (0x2460, 0x2500),
          (0x3000, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAD00), (0xFB00, 0xFB50), (0xFF00, 0xFFEF), (0x1F300, 0x1F650), (0x1D400, 0x1D500)]
PIECES = [" ", "  ", "\n", "\r\n", "\t", "1", "23", "the", "Water", "'s", "'LL", "<|im_end|>", "<s>", ".", "...", "!", "é", "中"]


def random_text(rng):
    out = []
    for _ in range(rng.randint(1, 24)):
        if rng.random() < 0.4:
            out.append(rng.choice(PIECES))
            continue
        c = chr(rng.randrange(*rng.choice(RANGES)))
        if unicodedata.category(c) != "Cn":
            out.append(c)
    return "".join(out)


def corpus():
    rng = random.Random(20240917)
    return TEXTS + [random_text(rng) for _ in range(60)]


def train(tokenizer, size, special, **options):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False, **options)
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def byte_level(pre, special, size=600, normalizer=None, prefix=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, size, special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if prefix:
        template = processors.TemplateProcessing(single=f"{prefix} $A", special_tokens=[(prefix, tokenizer.token_to_id(prefix))])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def gpt2():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"])


def smollm2():
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    return byte_level(pre, CHATML)


def llama3():
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    return byte_level(split_then_bytes(CL100K % r"\p{N}{1,3}"), special, prefix="<|begin_of_text|>", ignore_merges=True)


def qwen2():
    tokenizer = byte_level(split_then_bytes(CL100K % r"\p{N}"), CHATML, normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return tokenizer


def sentencepiece(metaspace):
    """As transformers converts a SentencePiece BPE model: every split of a piece into two pieces is a merge, by the piece's rank."""
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    train(trained, 900, special)
    vocab = json.loads(trained.to_str())["model"]["vocab"]
    merges = []
    for piece, rank in sorted(vocab.items(), key=lambda item: item[1]):
        if rank < len(special):
            continue
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
        merges.extend(sorted(pairs, key=lambda pair: (vocab[pair[0]], vocab[pair[1]])))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<unk>", "<s>", "</s>"]])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return tokenizer


def gemma():
    """SentencePiece without a space in front. Runs of line ends, tabs and spaces are tokens: found in the text as they are, and of spaces, which
    are marked before that, by merges that come before all others, the longest first."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    kinds = [("\n", 1, 4), ("▁", 2, 5), ("\t", 1, 3)]
    runs = [mark * n for mark, least, most in kinds for n in range(least, most + 1)]
    first = special + runs + [f"<0x{b:02X}>" for b in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    train(trained, 900, first)
    vocab = json.loads(trained.to_str())["model"]["vocab"]
    merges = [(mark * left, mark * right) for left in range(4, 0, -1) for right in range(4, 0, -1) for mark, least, most in kinds
              if left + right <= most and mark * left in vocab and mark * right in vocab]
    for piece, rank in sorted(vocab.items(), key=lambda item: item[1]):
        if rank >= len(first):
            pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
            merges.extend(sorted(pairs, key=lambda pair: (vocab[pair[0]], vocab[pair[1]])))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in runs])
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))])
    return tokenizer


def added():
    """Every flag of an added token, a prefix space, and a lowercasing normalizer."""
    pre = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("isolated"), pre_tokenizers.ByteLevel(add_prefix_space=True)])
    tokenizer = byte_level(pre, ["<|endoftext|>"], normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]))
    tokenizer.add_special_tokens([AddedToken("<s>", special=True, lstrip=True, rstrip=True, normalized=False),
                                  AddedToken("<|im_end|>", special=True, rstrip=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("WATER", single_word=True, normalized=True), AddedToken("wheel", single_word=True, normalized=False),
                          AddedToken("water wheel", normalized=False), AddedToken("  ", normalized=False), AddedToken("中", lstrip=True, normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A <|im_end|>", special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<s>", "<|im_end|>")])
    return tokenizer


def splits():
    """The remaining pre-tokenizers and behaviors, without bytes: unknown characters become one <unk>."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split("=", "merged_with_previous"), pre_tokenizers.Split(Regex("[(]"), "merged_with_next"),
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[.]"), "contiguous"), pre_tokenizers.CharDelimiterSplit("|"),
        pre_tokenizers.Metaspace(prepend_scheme="always", split=True), pre_tokenizers.Split(Regex(r"[^-]+"), "removed", invert=True)])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return train(tokenizer, 400, ["<unk>", "<s>", "<|im_end|>"])


def words():
    """Whitespace cuts and no decoder."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Whitespace()])
    return train(tokenizer, 400, ["<unk>", "<s>"])


FAMILIES = {"gpt2": gpt2, "smollm2": smollm2, "llama3": llama3, "qwen2": qwen2, "llama2": lambda: sentencepiece(False),
            "llama2_metaspace": lambda: sentencepiece(True), "gemma": gemma, "added": added, "splits": splits, "words": words}


def record(tokenizer, text):
    ids = tokenizer.encode(text).ids
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = True
    literal = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = False
    return {"text": text, "ids": ids, "plain": plain, "literal": literal, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
            "skipped": tokenizer.decode(ids, skip_special_tokens=True)}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or FAMILIES:
        tokenizer = FAMILIES[name]()
        definition = json.loads(tokenizer.to_str())
        (OUT / f"{name}.tokenizer.json").write_text(json.dumps(definition, ensure_ascii=False, separators=(",", ":")) + "\n")
        lines = [json.dumps(record(tokenizer, text), ensure_ascii=False, separators=(",", ":")) for text in corpus()]
        (OUT / f"{name}.cases.jsonl").write_text("\n".join(lines) + "\n")
        print(name, tokenizer.get_vocab_size(), len(lines))


main()
