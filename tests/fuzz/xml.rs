//! A check that XML is well-formed.

/// Checks that elements nest, quotes close, `&` begins a known reference, and every character is allowed in XML.
pub fn well_formed(xml: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = xml;
    while let Some(at) = rest.find('<') {
        references(&rest[..at]);
        let end = rest[at..].find('>').unwrap_or_else(|| panic!("an end is missing in {:.80}", &rest[at..])) + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "elements nest");
            continue;
        }
        assert!(tag.matches('"').count().is_multiple_of(2) && !tag.contains('<'), "quotes close in {tag}");
        references(tag);
        if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap_or_default());
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} stay open before {rest:.80}");
    let allowed = |c: char| !c.is_control() || matches!(c, '\n' | '\t' | '\r') || c >= '\u{7f}';
    assert!(xml.chars().all(|c| allowed(c) && !matches!(c, '\u{fffe}' | '\u{ffff}')), "characters that XML has not");
}

fn references(text: &str) {
    for part in text.split('&').skip(1) {
        assert!(
            ["amp;", "lt;", "gt;", "quot;", "apos;", "#39;"].iter().any(|known| part.starts_with(known)),
            "&{part:.9}"
        );
    }
}
