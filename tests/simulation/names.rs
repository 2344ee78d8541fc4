//! Names that are not known: what is suggested is never another product.

use pipesim::Selection;
use pipesim::internals::model_spec::unknown;
use pipesim::models::{hardware, stack, transformer_named};

/// Built-in names that a message asks about.
fn suggested(said: &str) -> Vec<String> {
    let question = said.split_once("did you mean ").and_then(|(_, rest)| rest.split_once('?'));
    let names = question.map_or("", |(names, _)| names).replace(" or ", ", ");
    names.split(", ").filter(|name| !name.is_empty()).map(str::to_string).collect()
}

/// Products on the market, and the built-in hardware of the same product; none for those that are another product.
const PRODUCTS: [(&str, &[&str]); 70] = [
    ("a100", &["a100-sxm-80gb", "a100-sxm-40gb"]),
    ("A100-80GB", &["a100-sxm-80gb"]),
    ("nvidia-a100", &["a100-sxm-80gb", "a100-sxm-40gb"]),
    ("h100", &["h100-sxm", "h100-sxm-96gb-500w", "h100-pcie", "h100-nvl"]),
    ("h100sxm5", &["h100-sxm"]),
    ("h100-sx", &["h100-sxm", "h100-sxm-96gb-500w"]),
    ("h200", &["h200-sxm"]),
    ("h800", &["h800-sxm"]),
    ("a800", &["a800-sxm-80gb"]),
    ("dgx-h100", &["h100-sxm", "h100-sxm-96gb-500w", "h100-pcie", "h100-nvl"]),
    ("gb200-nvl72", &["gb200"]),
    ("mi300", &["mi300x"]),
    ("rtx4090", &["rtx-4090"]),
    ("4090", &["rtx-4090"]),
    ("gh200", &["gh200"]),
    ("GH200-96GB", &["gh200"]),
    ("nvidia-gh200-nvl2", &["gh200"]),
    ("h200-nvl", &[]),
    ("h20-3e", &[]),
    ("h800-pcie", &[]),
    ("h100x", &[]),
    ("a100-pcie-40gb", &[]),
    ("a100x", &[]),
    ("a30", &[]),
    ("a10", &[]),
    ("a10g", &[]),
    ("a16", &[]),
    ("a2", &[]),
    ("a40", &[]),
    ("a6000", &[]),
    ("rtx-a6000", &[]),
    ("rtx-6000-ada", &[]),
    ("rtx-pro-6000", &[]),
    ("rtx-3090", &[]),
    ("rtx-4080", &[]),
    ("rtx-4090-d", &[]),
    ("rtx-4090d", &[]),
    ("rtx-5090", &[]),
    ("b100", &[]),
    ("b40", &[]),
    ("gb10", &[]),
    ("gb100", &[]),
    ("dgx-spark", &[]),
    ("vr200", &[]),
    ("l4", &[]),
    ("l20", &[]),
    ("l40", &[]),
    ("l40g", &[]),
    ("t4", &[]),
    ("v100", &[]),
    ("p100", &[]),
    ("k80", &[]),
    ("mi50", &[]),
    ("mi100", &[]),
    ("mi210", &[]),
    ("mi250", &[]),
    ("mi250x", &[]),
    ("mi300a", &[]),
    ("mi308x", &[]),
    ("mi350x", &[]),
    ("mi400", &[]),
    ("gaudi2", &[]),
    ("gaudi-3", &[]),
    ("tpu-v5p", &[]),
    ("tpu-v6e", &[]),
    ("trn2", &[]),
    ("trainium2", &[]),
    ("ascend-910b", &[]),
    ("m4-max", &[]),
    ("h300", &[]),
];

#[test]
fn hardware_is_never_proposed_for_another_product() {
    for (asked, same) in PRODUCTS {
        let said = match hardware(asked) {
            Ok(found) => {
                assert_eq!(same, [found.name.as_str()], "{asked}");
                continue;
            }
            Err(why) => why.to_string(),
        };
        let found = suggested(&said);
        assert!(found.iter().all(|name| same.contains(&name.as_str())), "{asked}: {said}");
        assert_eq!(found.is_empty(), same.is_empty(), "{asked}: {said}");
    }
    let said = hardware("h200-nvl").unwrap_err().to_string();
    assert!(said.contains("the most similar is h200-sxm") && said.contains("base = \"h200-sxm\""), "{said}");
    for built_in in
        ["h200", "H800", "a800", "h20", "b300", "mi300x", "l40s", "mi325x", "h100-nvl", "gh200", "gh200-144gb"]
    {
        assert!(hardware(built_in).is_ok(), "{built_in}");
    }
}

/// Names of models that are published and not built in, with the built-in one of the same layers, if any.
#[test]
fn models_are_never_proposed_for_another_version() {
    let same: [(&str, &[&str]); 30] = [
        ("deepseek-v3.2", &[]),
        ("deepseek-r1", &[]),
        ("deepseek-v4-flash", &[]),
        ("kimi-k2.5", &[]),
        ("kimi-k3", &[]),
        ("grok-1.5", &[]),
        ("grok-2", &[]),
        ("qwen2-7b", &[]),
        ("qwen1.5-7b", &[]),
        ("qwen3.5-35b-a3b", &[]),
        ("qwen3-next-80b-a3b", &[]),
        ("gpt-4", &[]),
        ("gpt-neox-20b", &[]),
        ("gemma-3-27b", &[]),
        ("gemma-7b", &[]),
        ("mistral-small-24b", &[]),
        ("llama-3.2-11b-vision", &[]),
        ("llama-3.2-90b-vision", &[]),
        ("glm-4.5-air", &[]),
        ("minimax-m2", &[]),
        ("olmoe-1b-7b", &[]),
        ("nemotron-3-nano-30b-a3b", &[]),
        ("phi-4-mini", &[]),
        ("bloom-7b", &[]),
        ("nemotron-4-341b", &[]),
        ("mixtral-8x7b-instruct", &["mixtral-8x7b"]),
        ("llama-3.1-8b-instruct", &["llama-3.1-8b"]),
        ("qwen2.5-coder-32b", &["qwen2.5-32b"]),
        ("gemma2-9b-it", &["gemma-2-9b"]),
        ("lama-3-8b", &["llama-3-8b"]),
    ];
    for (asked, same) in same {
        assert!(transformer_named(asked).is_none(), "{asked}");
        let said = unknown(asked);
        assert_eq!(suggested(&said), same, "{asked}: {said}");
    }
}

#[test]
fn software_and_schedules_are_never_proposed_for_others() {
    for asked in ["maxtext", "axolotl", "colossalai", "torchtune", "picotron", "nanogpt"] {
        let said = stack(asked).unwrap_err().to_string();
        assert_eq!(suggested(&said), Vec::<String>::new(), "{said}");
    }
    for asked in ["zb-h3", "2f2b", "bitpipe", "wavepipe", "pipefisher"] {
        let said = Selection::new(4, 8).order(asked).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("no schedule is called") && suggested(&said).is_empty(), "{said}");
    }
}
