//! Embeds every file of `schedules/`.

mod embed;

/// Order of lists, and of ties in `auto`; other schedules follow by name.
const ORDER: &str = "naive gpipe 1f1b eager-1f1b interleaved-1f1b looped-bfs zb-h1 zb-h2 zb-1p zb-2p zb-v zb-v-greedy v-half v-min \
    v-zb 1f1b-v interleaved-zb dualpipe dualpipe-v chimera hanayo group-interleaved";

fn main() {
    embed::embed("schedules", "star", ORDER);
}
