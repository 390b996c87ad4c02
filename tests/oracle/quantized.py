"""Writes tests/fixtures/models/quant_*: tiny checkpoints in the formats of quantization libraries, and what those libraries make of them.

    python tests/oracle/quantized.py [name ...]

Weights are rounded, packed and decoded by the library that owns the format (requirements-quantized.txt); transformers then runs the decoded
weights in f32. Where a format rounds activations, the library's own rounding stands before every product. Beside a fixture's logits
(fixture.py) lies decoded.f32: k_proj of layer 0, [32, 64], and the first 16 rows of its down_proj, [16, 192], as the library decodes them.
"""

import importlib.util
import json
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from fixture import FULL, ROOT, choose_prompt, close, full_logits, generated, random_weights, recomputed, write_expected

CONFIG = dict(
    vocab_size=131, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)
DECODED = ("model.layers.0.self_attn.k_proj", 32), ("model.layers.0.mlp.down_proj", 16)


def module_of(package, path):
    """A file of an installed package without the rest of it, which wants a GPU."""
    for base in sys.path:
        where = Path(base) / package / path
        if where.exists():
            spec = importlib.util.spec_from_file_location(package + "_" + where.stem, where)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise ImportError(f"{package}/{path}")


def tiny():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**CONFIG), attn_implementation="eager").eval()
    random_weights(model, 1, torch.bfloat16)
    return model.float()


def layers(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "lm_head" not in n}


class Rounding(torch.nn.Module):
    """A linear layer whose inputs are rounded first."""

    def __init__(self, linear, rounded):
        super().__init__()
        self.linear, self.rounded = linear, rounded

    def forward(self, x):
        return self.linear(self.rounded(x))


def extremes(w, group):
    """Least and largest of every group: [out, groups]."""
    g = w.reshape(w.shape[0], -1, group)
    return g.amin(-1).clamp(max=0), g.amax(-1).clamp(min=0)


def scale_and_zero(w, bits, group, symmetric):
    low, high = extremes(w, group)
    steps = 2**bits - 1
    if symmetric:
        scale = (2 * torch.maximum(-low, high) / steps).half().float()
        return scale, torch.full_like(scale, 2 ** (bits - 1))
    scale = ((high - low) / steps).half().float()
    return scale, torch.clamp(torch.round(-low / scale), 1, steps)


# --- a format is a function: (name of a module, its linear layer) -> (tensors, decoded weight, rounding of activations or None)


def awq(group=32):
    packing = module_of("awq", "utils/packing_utils.py")
    utils = types.ModuleType("awq.utils.utils")  # what its linear layer imports, without the rest
    utils.get_best_device = lambda: "cpu"
    tried = types.ModuleType("awq.utils.module")
    tried.try_import = lambda name: (None, "")
    for name, module in (("awq", types.ModuleType("awq")), ("awq.utils", types.ModuleType("awq.utils")), ("awq.utils.utils", utils),
                         ("awq.utils.module", tried), ("awq.utils.packing_utils", packing)):
        sys.modules.setdefault(name, module)
    gemm = module_of("awq", "modules/linear/gemm.py")

    def make(name, linear):
        scale, zero = scale_and_zero(linear.weight.data, 4, group, False)
        q = gemm.WQLinear_GEMM.from_linear(linear, 4, group, scales=scale.t().contiguous(), zeros=zero.t().contiguous())
        decoded = packing.dequantize_gemm(q.qweight, q.qzeros, q.scales.float(), 4, group).t()
        return {"qweight": q.qweight, "qzeros": q.qzeros, "scales": q.scales}, decoded, None

    return make


def gptq(bits, group, symmetric=False, ordered=lambda name: True, as_they_are=False):
    qlinear = module_of("auto_gptq", "nn_modules/qlinear/qlinear_cuda.py")

    def make(name, linear):
        b, g = bits(name), group(name)
        w = linear.weight.data
        out, n = w.shape
        g = n if g == -1 else g
        numbers = torch.arange(n) // g
        if not ordered(name):
            numbers = numbers[torch.randperm(n, generator=torch.Generator().manual_seed(len(name)))]
        order = torch.argsort(numbers, stable=True)
        scale, zero = scale_and_zero(w[:, order], b, g, symmetric)
        q = qlinear.QuantLinear(b, g, n, out, False, weight_dtype=torch.float16)
        half = torch.nn.Linear(n, out, bias=False)
        half.weight.data = w.clone()
        q.pack(half, scale.clone(), zero.clone(), numbers.to(torch.int32))
        q.scales = q.scales.float()
        decoded = q(torch.eye(n)).t().contiguous()
        qzeros = q.qzeros
        if as_they_are:  # stored minus 1 in every field, and none is 0: no borrow
            ones = sum(1 << (b * i) for i in range(32 // b))
            qzeros = (qzeros.long() + ones).to(torch.int32)
        return {"qweight": q.qweight, "qzeros": qzeros, "scales": q.scales.half(), "g_idx": numbers.to(torch.int32)}, decoded, None

    return make


def compressed(schemes):
    """schemes: (module's name) -> QuantizationScheme or None."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize, fake_quantize
    from compressed_tensors.quantization.utils import calculate_qparams, compute_dynamic_scales_and_zp, generate_gparam

    def make(name, linear):
        scheme, form = schemes(name)
        a, w = scheme.weights, linear.weight.data
        out, n = w.shape
        outer = None
        if a.strategy in ("group", "tensor_group"):
            low, high = extremes(w, a.group_size)
        elif a.strategy == "channel":
            low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
        elif a.strategy == "block":
            rows, columns = a.block_structure
            blocks = torch.nn.functional.pad(w, (0, -n % columns, 0, -out % rows)).unfold(0, rows, rows).unfold(1, columns, columns)
            low, high = blocks.amin((-1, -2)), blocks.amax((-1, -2))
        else:
            low, high = w.min().reshape(1), w.max().reshape(1)
        if a.strategy == "tensor_group":
            outer = generate_gparam(w.min(), w.max())
        scale, zero = calculate_qparams(low, high, a, global_scale=outer)
        if a.type == "int":
            scale = scale.bfloat16()  # as most files have it; the library then decodes to bf16, here to f32
        tensors = {"weight": w, "weight_scale": scale.float()}
        if not a.symmetric:
            tensors["weight_zero_point"] = zero.to(torch.int8)
        if outer is not None:
            tensors["weight_global_scale"] = outer
        compressor = BaseCompressor.get_value_from_registry(form)
        packed = compressor.compress(tensors, scheme)
        decoded = compressor.decompress(packed, scheme)["weight"].float()
        if a.type == "int":
            packed["weight_scale"] = scale
        if outer is not None:  # again in f32: the library's own decompression is in bf16
            values = unpack_fp4_from_uint8(packed["weight_packed"], out, n, dtype=torch.float32)
            decoded = dequantize(values, packed["weight_scale"].float(), args=a, dtype=torch.float32, global_scale=outer)
        rounded = None
        if scheme.input_activations is not None:
            x = scheme.input_activations
            if x.dynamic:
                def rounded(v):
                    s, z = compute_dynamic_scales_and_zp(v, x, None)
                    return fake_quantize(v, s, z, x)
            else:
                static = torch.tensor([0.02 + 0.001 * (len(name) % 7)])
                packed["input_scale"] = static

                def rounded(v):
                    return fake_quantize(v, static, torch.zeros(1), x)
        return packed, decoded, rounded

    return make


def args(**changes):
    from compressed_tensors.quantization import QuantizationArgs

    return QuantizationArgs(**changes)


def scheme(weights, inputs=None, targets=("Linear",)):
    from compressed_tensors.quantization import QuantizationScheme

    return QuantizationScheme(targets=list(targets), weights=weights, input_activations=inputs)


def compressed_config(groups, form):
    return dict(quant_method="compressed-tensors", format=form, quantization_status="compressed", ignore=["lm_head"],
                config_groups={f"group_{i}": json.loads(g.model_dump_json()) for i, g in enumerate(groups)})


def preset(name, form):
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme

    s = preset_name_to_scheme(name, ["Linear"])
    return compressed(lambda _: (s, form)), dict(quantization_config=compressed_config([s], form))


def mixed_compressed():
    """Groups of 32 with zeros in attention, 8 bits in the others: two groups of one configuration."""
    asym = scheme(args(num_bits=4, type="int", strategy="group", group_size=32, symmetric=False), targets=["re:.*self_attn.*"])
    wide = scheme(args(num_bits=8, type="int", strategy="channel"))
    form = "pack-quantized"
    return (compressed(lambda name: (asym if "self_attn" in name else wide, form)),
            dict(quantization_config=compressed_config([asym, wide], form)))


def w4a16(bits=4, group=64):
    s = scheme(args(num_bits=bits, type="int", strategy="group", group_size=group))
    return compressed(lambda _: (s, "pack-quantized")), dict(quantization_config=compressed_config([s], "pack-quantized"))


def fp8_block():
    """As DeepSeek V3 stores it: the same blocks under other names."""
    inner, _ = preset("FP8_BLOCK", "float-quantized")

    def make(name, linear):
        packed, decoded, rounded = inner(name, linear)
        return {"weight": packed["weight"], "weight_scale_inv": packed["weight_scale"]}, decoded, round_groups if rounded else None

    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    a = args(num_bits=8, type="float", strategy="group", group_size=128, dynamic=True)

    def round_groups(v):  # the last group of a row may be short
        padded = torch.nn.functional.pad(v, (0, -v.shape[-1] % 128))
        s, z = compute_dynamic_scales_and_zp(padded, a, None)
        return fake_quantize(padded, s, z, a)[..., : v.shape[-1]]

    return make, dict(quantization_config=dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128]))


def modelopt_nvfp4():
    """compressed-tensors' bytes under ModelOpt's names: its second scale is the inverse."""
    inner, _ = preset("NVFP4A16", "nvfp4-pack-quantized")

    def make(name, linear):
        packed, _, _ = inner(name, linear)
        second = 1 / packed["weight_global_scale"]
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
        bytes_ = packed["weight_packed"].long()
        values = torch.stack([table[bytes_ & 15], table[bytes_ >> 4]], -1).reshape(linear.weight.shape)
        scale = packed["weight_scale"].float() * second
        decoded = (values.reshape(values.shape[0], -1, 16) * scale[:, :, None]).reshape(values.shape)
        return {"weight": packed["weight_packed"], "weight_scale": packed["weight_scale"], "weight_scale_2": second.reshape(())}, decoded, None

    return make, dict(quantization_config=dict(quant_method="modelopt", quant_algo="NVFP4"))


def bnb_4bit(kind, nested):
    from bitsandbytes import functional as F

    def make(name, linear):
        packed, state = F.quantize_4bit(linear.weight.data, blocksize=64, compress_statistics=nested, quant_type=kind)
        decoded = F.dequantize_4bit(packed, state).float()
        tensors = {"weight": packed}
        for key, value in state.as_dict(packed=True).items():
            tensors["weight." + key] = value
        return tensors, decoded, None

    config = dict(quant_method="bitsandbytes", load_in_4bit=True, load_in_8bit=False, bnb_4bit_quant_type=kind,
                  bnb_4bit_use_double_quant=nested)
    return make, dict(quantization_config=config)


def bnb_int8():
    """LLM.int8(): inputs beyond the threshold take the decoded weight, the others are rounded, a row at a time."""
    from bitsandbytes import functional as F

    def make(name, linear):
        q, scale, _ = F.int8_vectorwise_quant(linear.weight.data.half())
        decoded = F.int8_vectorwise_dequant(q, scale)

        def rounded(v):
            rows = []
            for row in v.reshape(-1, 1, v.shape[-1]):
                codes, largest, outliers = F.int8_vectorwise_quant(row.clone(), threshold=THRESHOLD)
                values = codes * largest / 127
                values[:, outliers] = row[:, outliers]
                rows.append(values)
            return torch.cat(rows).reshape(v.shape)

        return {"weight": q, "SCB": scale, "weight_format": torch.zeros((), dtype=torch.uint8)}, decoded, rounded

    THRESHOLD = 2.5  # small, so that a tiny model has outliers
    return make, dict(quantization_config=dict(quant_method="bitsandbytes", load_in_8bit=True, load_in_4bit=False,
                                               llm_int8_threshold=THRESHOLD))


def mlx(bits, group):
    import mlx.core as mx

    def make(name, linear):
        b, g = bits(name), group
        q, scale, bias = mx.quantize(mx.array(linear.weight.data.numpy()), group_size=g, bits=b)
        scale, bias = scale.astype(mx.float16), bias.astype(mx.float16)
        decoded = mx.dequantize(q, scale.astype(mx.float32), bias.astype(mx.float32), group_size=g, bits=b)
        as_torch = lambda a: torch.from_numpy(np.array(a))
        return ({"weight": torch.from_numpy(np.array(q)), "scales": as_torch(scale), "biases": as_torch(bias)}, as_torch(decoded), None)

    return make


KINDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def by_kind(values):
    return lambda name: values[KINDS.index(name.split(".")[-1])]


def fixtures():
    gptq_bits, mlx_bits = (4, 3, 8, 4, 2, 4, 3), (4, 3, 8, 6, 5, 2, 4)
    dynamic = {"+:.*\\.k_proj$": {"bits": 3}, ".*\\.v_proj$": {"bits": 8}, "+:.*gate_proj": {"bits": 2}, "+:.*down_proj": {"bits": 3}}
    yield "awq", lambda: (awq(32), dict(quantization_config=dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm")))
    yield "gptq", lambda: (
        gptq(by_kind(gptq_bits), lambda _: 32, ordered=lambda name: "down" not in name and "k_proj" not in name),
        dict(quantization_config=dict(quant_method="gptq", bits=4, group_size=32, desc_act=True, sym=False, dynamic=dynamic)))
    yield "gptq_v2", lambda: (  # says v1, but its zeros are as they are
        gptq(lambda _: 4, lambda _: 64, symmetric=True, as_they_are=True),
        dict(quantization_config=dict(quant_method="gptq", bits=4, group_size=64, desc_act=False, sym=True, checkpoint_format="gptq")))
    yield "auto_round", lambda: (
        gptq(by_kind((4, 8, 4, 4, 4, 4, 4)), by_kind((32, 64, 32, 32, 32, 32, -1)), symmetric=True),
        dict(quantization_config=dict(
            quant_method="auto-round", packing_format="auto_round:auto_gptq", bits=4, group_size=32, sym=True,
            extra_config={f"model.layers.{i}.{m}": c for i in range(2)
                          for m, c in (("self_attn.k_proj", dict(bits=8, group_size=64)), ("mlp.down_proj", dict(group_size=-1)))})))
    yield "w4a16", w4a16
    yield "w3a16", lambda: w4a16(3, 32)
    yield "ct_mixed", mixed_compressed
    yield "w8a8", lambda: preset("W8A8", "int-quantized")
    yield "fp8_static", lambda: preset("FP8", "float-quantized")
    yield "fp8_dynamic", lambda: preset("FP8_DYNAMIC", "float-quantized")
    yield "fp8_block", fp8_block
    yield "mxfp4", lambda: preset("MXFP4A16", "mxfp4-pack-quantized")
    yield "mxfp8", lambda: preset("MXFP8A16", "mxfp8-quantized")
    yield "nvfp4", lambda: preset("NVFP4A16", "nvfp4-pack-quantized")
    yield "modelopt_nvfp4", modelopt_nvfp4
    yield "bnb_nf4", lambda: bnb_4bit("nf4", True)
    yield "bnb_fp4", lambda: bnb_4bit("fp4", False)
    yield "bnb_int8", bnb_int8
    yield "mlx", lambda: (mlx(by_kind(mlx_bits), 32), dict(quantization=dict(
        group_size=32, bits=4, **{f"model.layers.{i}.{p}.{k}": dict(group_size=32, bits=b) for i in range(2)
                                  for k, b in zip(KINDS, mlx_bits) if b != 4 for p in ["self_attn" if k[0] in "qkvo" else "mlp"]})))


def evaluated(model, rounding):
    """Greedy tokens, and the logits of a single pass; rounded activations make runs differ by more than the order of sums."""
    prompt = choose_prompt(model, 24, 8, CONFIG["vocab_size"])
    tokens = generated(model, prompt, 8)[0]
    logits = full_logits(model, prompt + tokens)
    if not rounding:
        assert recomputed(model, prompt, 8) == tokens
        assert close(full_logits(model, prompt), logits[: len(prompt)])
    return prompt, tokens, logits


def make(name, form):
    make_layer, config = form()
    folder = ROOT / ("quant_" + name)
    shutil.rmtree(folder, ignore_errors=True)
    model = tiny()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tensors = {n: t.to(torch.bfloat16).contiguous() for n, t in model.state_dict().items() if n != "lm_head.weight"}
    decoded, rounding = {}, False
    for layer, linear in layers(model).items():
        packed, weight, rounded = make_layer(layer, linear)
        del tensors[layer + ".weight"]
        tensors |= {f"{layer}.{k}": v.detach().contiguous() for k, v in packed.items()}
        linear.weight.data = weight.detach().clone().contiguous()
        decoded[layer] = linear.weight.data
        if rounded:
            rounding = True
            parent, child = layer.rsplit(".", 1)
            setattr(model.get_submodule(parent), child, Rounding(linear, rounded))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}, indent=2, sort_keys=True) + "\n")
    with (folder / "decoded.f32").open("wb") as out:
        for layer, rows in DECODED:
            out.write(decoded[layer][:rows].contiguous().numpy().astype("<f4").tobytes())
    prompt, tokens, logits = evaluated(model, rounding)
    write_expected(folder, prompt, tokens, logits, FULL, {"rounds_activations": rounding})


if __name__ == "__main__":
    for name, form in fixtures():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            make(name, form)
