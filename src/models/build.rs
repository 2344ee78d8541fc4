//! Embeds every file of `models/`.

#[path = "../language/embed.rs"]
mod embed;

/// Order of lists; other models follow by name.
const ORDER: &str = "gpt-3-6.7b gpt-3-13b gpt-3-175b bloom-176b nemotron-4-15b nemotron-4-340b gpt-512m-plan mpt-7b mpt-30b \
    llama-2-7b llama-2-13b llama-2-70b llama-3-8b llama-3-70b llama-3-405b llama-3.2-1b llama-3.2-3b mistral-7b deepseek-v2 \
    deepseek-v2-lite deepseek-v3 kimi-k2 moonlight-16b-a3b mixtral-8x7b mixtral-8x22b qwen3-30b-a3b qwen3-235b-a22b gpt-oss-20b \
    gpt-oss-120b grok-1 llama-4-scout llama-4-maverick qwen2.5-0.5b qwen2.5-1.5b qwen2.5-3b qwen2.5-7b qwen2.5-14b qwen2.5-32b \
    qwen2.5-72b qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-14b qwen3-32b gemma-2-2b gemma-2-9b gemma-2-27b llama-3.1-8b \
    llama-3.1-70b llama-3.1-405b llama-3.3-70b";

fn main() {
    embed::embed("models", "json", ORDER);
}
