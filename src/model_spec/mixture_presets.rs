//! Published sizes of mixtures of experts, and of dense models with norms, windows or biases of their own.

use super::mixture::{Experts, Latent};
use super::operation::Window;
use super::transformer::{Activation, ActivationFunction, Biases, Config, Rotary, Style};

/// RMSNorm, rotary positions, a gated MLP, no biases, an untied head. `heads` are those of queries, and of keys and values.
const fn decoder(
    vocabulary: usize,
    layers: usize,
    heads: [usize; 2],
    size: usize,
    channels: usize,
    mlp: usize,
) -> Config {
    Config {
        style: Style::Llama,
        biases: Biases::NONE,
        vocabulary_multiple: 1,
        rotary: Some(Rotary::new(1e6)),
        groups: heads[1],
        head_size: size,
        mlp,
        activation: Activation::Gated,
        function: ActivationFunction::Silu,
        norm_epsilon: 1e-6,
        tied: false,
        ..Config::gpt(vocabulary, 0, layers, heads[0], channels)
    }
}

/// DeepSeek-V2 and V3, Kimi-K2 and Moonlight: latent attention, first layers dense. `mlp` is the width of these.
const fn latent(
    vocabulary: usize,
    layers: usize,
    heads: usize,
    channels: usize,
    mlp: usize,
    rank: Option<usize>,
) -> Config {
    let latent = Latent { query_rank: rank, key_rank: 512, plain_size: 128, rotary_size: 64, value_size: 128 };
    Config {
        latent: Some(latent),
        rotary: Some(Rotary::new(10_000.0)),
        ..decoder(vocabulary, layers, [heads, heads], latent.size(), channels, mlp)
    }
}

const fn mixture(config: Config, experts: Experts) -> Config {
    Config { experts: Some(experts), ..config }
}

/// Experts after `dense_first` layers, with shared ones of this width.
const fn shared(count: usize, top_k: usize, width: usize, shared_width: usize, dense_first: usize) -> Experts {
    Experts { shared_width, dense_first, ..Experts::new(count, top_k, width) }
}

/// DeepSeek-V3 (arXiv 2412.19437, section 4.2): experts of 8 groups, of which a token visits 4; one further token is predicted.
const DEEPSEEK_V3: Config = Config {
    prediction_layers: 1,
    ..mixture(
        latent(129_280, 61, 128, 7168, 18_432, Some(1536)),
        Experts { router_groups: 8, group_top_k: 4, ..shared(256, 8, 2048, 2048, 3) },
    )
};

/// DeepSeek-V2 (arXiv 2405.04434, section 3.1.2).
const DEEPSEEK_V2: Config = mixture(
    latent(102_400, 60, 128, 5120, 12_288, Some(1536)),
    Experts { router_groups: 8, group_top_k: 3, ..shared(160, 6, 1536, 3072, 1) },
);

/// gpt-oss (arXiv 2508.10925): biases, attention sinks, and windows of 128 tokens in every other layer.
const fn gpt_oss(layers: usize, experts: usize) -> Config {
    Config {
        biases: Biases { norms: false, qkv: true, projection: true, mlp: true },
        window: Some(Window { tokens: 128, is_chunked: false }),
        full_every: 2,
        has_sinks: true,
        rotary: Some(Rotary::new(150_000.0)),
        function: ActivationFunction::Other,
        ..mixture(decoder(201_088, layers, [64, 8], 64, 2880, 2880), Experts::new(experts, 4, 2880))
    }
}

/// Llama 4 (its configurations on Hugging Face): of 4 layers 3 attend within chunks of 8192 tokens. `every` n-th has experts.
const fn llama_4(experts: usize, every: usize) -> Config {
    Config {
        window: Some(Window { tokens: 8192, is_chunked: true }),
        full_every: 4,
        rotary: Some(Rotary::new(500_000.0)),
        ..mixture(
            decoder(202_048, 48, [40, 8], 128, 5120, 16_384),
            Experts { every, ..shared(experts, 1, 8192, 8192, 0) },
        )
    }
}

/// Qwen3 (arXiv 2505.09388, tables 1 and 2): queries and keys are normalized.
const fn qwen3(vocabulary: usize, layers: usize, heads: [usize; 2], channels: usize, mlp: usize, tied: bool) -> Config {
    Config { qk_norm: true, tied, ..decoder(vocabulary, layers, heads, 128, channels, mlp) }
}

/// Qwen2.5 (arXiv 2412.15115, table 1): biases of queries, keys and values.
const fn qwen2(vocabulary: usize, layers: usize, heads: [usize; 2], channels: usize, mlp: usize, tied: bool) -> Config {
    let biases = Biases { qkv: true, ..Biases::NONE };
    Config { biases, tied, ..decoder(vocabulary, layers, heads, channels / heads[0], channels, mlp) }
}

/// Gemma 2 (arXiv 2408.00118, table 1): norms after attention and MLP, and windows of 4096 tokens in every other layer.
const fn gemma_2(layers: usize, heads: [usize; 2], size: usize, channels: usize, mlp: usize) -> Config {
    Config {
        post_norms: true,
        tied: true,
        window: Some(Window { tokens: 4096, is_chunked: false }),
        full_every: 2,
        rotary: Some(Rotary::new(10_000.0)),
        function: ActivationFunction::GeluTanh,
        ..decoder(256_000, layers, heads, size, channels, mlp)
    }
}

/// Name and sizes.
pub(super) const PRESETS: &[(&str, Config)] = &[
    ("deepseek-v2", DEEPSEEK_V2),
    ("deepseek-v2-lite", mixture(latent(102_400, 27, 16, 2048, 10_944, None), shared(64, 6, 1408, 2816, 1))),
    ("deepseek-v3", DEEPSEEK_V3),
    ("kimi-k2", mixture(latent(163_840, 61, 64, 7168, 18_432, Some(1536)), shared(384, 8, 2048, 2048, 1))),
    ("moonlight-16b-a3b", mixture(latent(163_842, 27, 16, 2048, 11_264, None), shared(64, 6, 1408, 2816, 1))),
    ("mixtral-8x7b", mixture(decoder(32_000, 32, [32, 8], 128, 4096, 14_336), Experts::new(8, 2, 14_336))),
    ("mixtral-8x22b", mixture(decoder(32_768, 56, [48, 8], 128, 6144, 16_384), Experts::new(8, 2, 16_384))),
    ("qwen3-30b-a3b", mixture(qwen3(151_936, 48, [32, 4], 2048, 6144, false), Experts::new(128, 8, 768))),
    ("qwen3-235b-a22b", mixture(qwen3(151_936, 94, [64, 4], 4096, 12_288, false), Experts::new(128, 8, 1536))),
    ("gpt-oss-20b", gpt_oss(24, 32)),
    ("gpt-oss-120b", gpt_oss(36, 128)),
    ("grok-1", mixture(decoder(128_256, 64, [48, 8], 128, 6144, 32_768), Experts::new(8, 2, 32_768))),
    ("llama-4-scout", llama_4(16, 1)),
    ("llama-4-maverick", llama_4(128, 2)),
    ("qwen2.5-0.5b", qwen2(151_936, 24, [14, 2], 896, 4864, true)),
    ("qwen2.5-1.5b", qwen2(151_936, 28, [12, 2], 1536, 8960, true)),
    ("qwen2.5-3b", qwen2(151_936, 36, [16, 2], 2048, 11_008, true)),
    ("qwen2.5-7b", qwen2(152_064, 28, [28, 4], 3584, 18_944, false)),
    ("qwen2.5-14b", qwen2(152_064, 48, [40, 8], 5120, 13_824, false)),
    ("qwen2.5-32b", qwen2(152_064, 64, [40, 8], 5120, 27_648, false)),
    ("qwen2.5-72b", qwen2(152_064, 80, [64, 8], 8192, 29_568, false)),
    ("qwen3-0.6b", qwen3(151_936, 28, [16, 8], 1024, 3072, true)),
    ("qwen3-1.7b", qwen3(151_936, 28, [16, 8], 2048, 6144, true)),
    ("qwen3-4b", qwen3(151_936, 36, [32, 8], 2560, 9728, true)),
    ("qwen3-8b", qwen3(151_936, 36, [32, 8], 4096, 12_288, false)),
    ("qwen3-14b", qwen3(151_936, 40, [40, 8], 5120, 17_408, false)),
    ("qwen3-32b", qwen3(151_936, 64, [64, 8], 5120, 25_600, false)),
    ("gemma-2-2b", gemma_2(26, [8, 4], 256, 2304, 9216)),
    ("gemma-2-9b", gemma_2(42, [16, 8], 256, 3584, 14_336)),
    ("gemma-2-27b", gemma_2(46, [32, 16], 128, 4608, 36_864)),
];
