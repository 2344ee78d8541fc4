//! Settings and their flags: the library names a setting in backticks, the command line writes its flag.

use pipesim_report::Report;

/// The settings, each named like its flag.
const SETTINGS: &str = "\
    attention back-to-back balance baseline batch beta1 beta2 blocks calibrate calibrate-batch calibrate-micro channels checkpoint chunks \
    clip collapse contention cores costs costs-per cp cuda-graph cuda-graphs data days defer-reduce-grad-wait delay-wgrad delivery device \
    dispatcher dp effort ep epochs eps etp exact fix framework framework-version from gpu-slices gpus hardware heads held-out host-link-devices jitter jitter-seed job job-args job-env job-file label layers \
    layout link link-contention link-scope lora lr lr-schedule max-active-stages max-ops max-sequence max-ticks measured memory-cap micro \
    micro-batch-size min-lr model moe-overlap objective optimizer-offload overlap overlap-optimizer-offload overlap-slowdown packed pipeline precision products profile prompt ranks recompute \
    record repeat-batch resume risk rounds routing sample-every sample-prompt sample-seed sample-tokens samples save-every schedule schedules \
    seed seq sequence-parallel set shard sharing slice-lengths slots slow-link stack stages step steps straggler temperature time-limit timeout tokenizer tokens \
    top-k tp transfer transfer-to unit-ms unshard-lookahead until validate-every validation-batches vocabulary warmup warmup-steps \
    weight-decay window zero";

/// Settings whose flag has another name.
const RENAMED: [(&str, &str); 2] = [("pp", "stages"), ("sequence", "seq")];

/// Returns the flag of a setting, without hyphens; fields may be written as in Rust (`micro_batch_size`).
fn flag(setting: &str) -> Option<String> {
    let name = setting.replace('_', "-");
    let renamed = RENAMED.iter().find(|(from, _)| *from == name).map(|(_, to)| *to);
    SETTINGS.split(' ').find(|known| *known == renamed.unwrap_or(&name)).map(str::to_string)
}

/// Returns a text of the library with the settings that it names in backticks as flags: "set `tp` to 1" becomes "set --tp to 1". Other
/// words in backticks stay as they are.
pub fn as_flags(text: impl ToString) -> String {
    let text = text.to_string();
    let mut written = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('`') {
        written += before;
        let setting = after.split_once('`').and_then(|(name, after)| Some((flag(name)?, after)));
        if let Some((flag, after)) = setting {
            written += "--";
            written += &flag;
            rest = after;
        } else {
            written.push('`');
            rest = after;
        }
    }
    written + rest
}

/// Writes settings as flags in the texts of a report.
pub fn in_report(report: &mut Report) {
    let notes = report.entries.iter_mut().flat_map(|entry| &mut entry.notes);
    let captions = report.extra_tables.iter_mut().map(|table| &mut table.caption);
    let texts = notes.chain(captions).chain(&mut report.look.no_letters).chain([&mut report.verdict]);
    texts.filter(|text| text.contains('`')).for_each(|text| *text = as_flags(&*text));
}
