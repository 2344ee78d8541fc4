//! Messages for unknown models.

use super::{names, transformer_named};
use crate::nearest::{hint, nearest, same_numbers};

/// Substrings of the names of mixture-of-experts models, in lower case.
const MIXTURES: [&str; 17] = [
    "mixtral", "moe", "deepseek", "gpt-oss", "dbrx", "grok", "arctic", "jamba", "kimi", "glam", "switch", "gshard",
    "llama-4", "llama4", "maverick", "minimax", "glm-4.5",
];

/// Returns whether a name is that of a mixture of experts: by family, or by sizes such as `8x7b` and `30b-a3b`.
fn is_mixture(name: &str) -> bool {
    let name = name.to_lowercase();
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let sizes = |part: &str| {
        let experts =
            part.split_once('x').is_some_and(|(many, each)| digits(many) && digits(each.trim_end_matches('b')));
        let active = part.strip_prefix('a').and_then(|rest| rest.strip_suffix('b')).is_some_and(digits);
        experts || active
    };
    MIXTURES.iter().any(|part| name.contains(part)) || name.split(['-', '_', '/', ' ']).any(sizes)
}

/// Returns the last part of `OWNER/NAME`, as on Hugging Face; `None` for a path.
pub fn of_hub(name: &str) -> Option<&str> {
    let (owner, last) = name.split_once('/')?;
    let is_file = last.is_empty() || last.contains('/') || last.to_lowercase().ends_with(".json");
    (!owner.is_empty() && !owner.starts_with(['.', '~']) && !is_file).then_some(last)
}

/// Explains that there is no model with this name, and what to use instead.
pub fn unknown(name: &str) -> String {
    if transformer_named(name).is_some() {
        return format!("expected the name of a model without its owner; write --model {}", name.to_lowercase());
    }
    let known: Vec<String> = names().collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let what = if is_mixture(name) {
        format!("'{name}' is a mixture of experts by its name, and mixture-of-experts models are not supported")
    } else {
        let like: Vec<&str> = nearest(name, &known).into_iter().filter(|found| same_numbers(name, found)).collect();
        format!("no model is called '{name}'{}", hint(&like))
    };
    format!("{what}; known: {}; or give the config.json of a dense model from Hugging Face", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixtures_of_experts_are_known_by_their_names() {
        for name in [
            "mixtral-8x7b",
            "Mixtral_8x22B",
            "deepseek-v3",
            "qwen3-30b-a3b",
            "Qwen1.5-MoE-A2.7B",
            "gpt-oss-120b",
            "olmoe-1b-7b",
            "8x7b",
        ] {
            assert!(is_mixture(name), "{name}");
        }
        for name in
            names().chain(["qwen2-7b", "opt-66b", "falcon-40b", "mistral-7b-v0.3", "a100", "xl"].map(str::to_string))
        {
            assert!(!is_mixture(&name), "{name}");
        }
    }

    #[test]
    fn an_unknown_model_is_told_what_it_may_be() {
        for (name, told) in [
            ("llama3-70", "did you mean llama-3-70b?"),
            ("llama-70b", "did you mean llama-2-70b, llama-3-70b or llama-3.1-70b?"),
            ("gpt3", "did you mean gpt-3-6.7b, gpt-3-13b or gpt-3-175b?"),
            ("Llama-3-70B-Instruct", "did you mean llama-3-70b?"),
            ("deepseek-v3", "mixture-of-experts models are not supported"),
            ("llama-5-70b", "no model is called 'llama-5-70b'; known: tiny"),
        ] {
            assert!(unknown(name).contains(told), "{name}: {}", unknown(name));
        }
        assert_eq!(of_hub("meta-llama/Llama-3-70B"), Some("Llama-3-70B"));
        assert!(unknown("Llama-3-70B").ends_with("write --model llama-3-70b"));
        for path in ["models/config.json", "./gpt2", "a/b/gpt2", "/gpt2", "~/gpt2", "gpt2/", "gpt2"] {
            assert_eq!(of_hub(path), None, "{path}");
        }
    }
}
