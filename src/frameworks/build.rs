//! Embeds every file of `frameworks/`.

#[path = "../language/embed.rs"]
mod embed;

fn main() {
    embed::embed("frameworks", "toml", "");
}
