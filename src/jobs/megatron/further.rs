//! What the options say to further settings of a question, in its own names.

use super::options::Options;
use crate::job::NotModelled;
use crate::reading::Reading;
use std::collections::BTreeMap;

/// Returns the further settings of a question.
pub(super) fn settings(options: &Options<'_>, read: &Reading) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut set = |name: &str, value: &str| all.insert(name.to_string(), value.to_string());
    if options.flag("overlap-moe-expert-parallel-comm") {
        set("moe-overlap", "true");
        if options.flag("delay-wgrad-compute") {
            set("delay-wgrad", "true");
        }
    }
    if options.flag("optimizer-cpu-offload") {
        set("optimizer-offload", options.text("optimizer-offload-fraction").unwrap_or("1.0"));
        if options.flag("overlap-cpu-optimizer-d2h-h2d") {
            set("overlap-optimizer-offload", "true");
        }
    }
    if let Some(graph) = cuda_graph(options) {
        set("cuda-graph", graph);
    }
    let is_plain = |backend: &str| ["unfused", "local"].iter().any(|name| backend.ends_with(name));
    if options.text("attention-backend").is_some_and(is_plain) {
        set("attention", "plain");
    }
    if read.dispatcher.as_deref() == Some("flex") {
        let backend = options.text("moe-flex-dispatcher-backend").filter(|backend| *backend == "hybridep");
        set("dispatcher", backend.unwrap_or("deepep"));
    }
    if read.experts.is_some() {
        if let Some(factor) = options.text("moe-expert-capacity-factor").filter(|factor| !factor.starts_with('-')) {
            set("routing", &format!("capacity:{factor}"));
        } else if options.flag("moe-router-force-load-balancing") {
            set("routing", "balanced");
        }
    }
    all
}

/// Returns the group of micro-batches that a device takes one after another, if it is another one than the number of stages.
pub(super) fn groups(options: &Options<'_>, read: &Reading) -> Option<NotModelled> {
    let name = "microbatch-group-size-per-virtual-pipeline-stage";
    let usual = read.pp.map(|pp| pp.to_string());
    let group = options.text(name).filter(|group| Some(*group) != usual.as_deref() && read.vp.is_some_and(|vp| vp > 1));
    let changes = "changes the order of the interleaved schedule; groups of as many as there are stages are taken";
    group.map(|group| NotModelled { option: format!("--{name} {group}"), changes: changes.to_string() })
}

/// Returns what is launched as CUDA graphs; `None`: nothing.
fn cuda_graph(options: &Options<'_>) -> Option<&'static str> {
    let implementation = options.text("cuda-graph-impl").filter(|name| *name != "none");
    let scope = options.list("cuda-graph-modules").or(options.list("cuda-graph-scope"));
    let is_old = options.flag("enable-cuda-graph") || options.flag("external-cuda-graph");
    if implementation.is_none() && !is_old {
        return None;
    }
    let parts = scope.unwrap_or_default();
    let is_whole = parts.iter().all(|part| part.starts_with("full"));
    Some(if is_whole { "full" } else { "partial" })
}
