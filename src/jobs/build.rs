//! Embeds every file of `jobs/`.

#[path = "../language/embed.rs"]
mod embed;

fn main() {
    embed::embed("jobs", "toml", "");
}
