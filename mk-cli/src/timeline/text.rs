//! Text for pages and pictures.

use std::borrow::Cow;

/// Text of a trace that may stand in a picture: on one line, at most `longest` characters, nothing in it that acts on its
/// surroundings. It is not yet escaped.
pub(crate) fn clean(text: &str, longest: usize) -> String {
    let acts = |c: char| {
        c.is_control()
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    let mut short: String =
        text.chars().take(longest).map(|c| if acts(c) { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(longest).is_some() {
        short.pop();
        short.push('…');
    }
    short
}

/// `text` as characters of an XML or HTML document, in an element or an attribute.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"', '\'']) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped.into()
}

/// Microseconds, for people.
pub(crate) fn us(us: f64) -> String {
    if us < 10.0 { format!("{us:.2} us") } else { format!("{us:.1} us") }
}

/// A part of a whole, for people.
pub(crate) fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// Numbers as ranges: `0-3, 8`.
pub(crate) fn ranges(sorted: &[u16]) -> String {
    let runs = sorted.chunk_by(|a, b| u32::from(*a) + 1 == u32::from(*b));
    let text = runs.map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    text.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_label_acts() {
        assert_eq!(clean("a\u{0}\n\u{202e}b", 9), "a\u{fffd}\u{fffd}\u{fffd}b");
        assert_eq!([clean("zwölf µs", 8), clean("zwölf µs", 7)], ["zwölf µs", "zwölf …"]);
        assert_eq!(escape("<a href='x'>&\"</a>"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;&lt;/a&gt;");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([us(0.0), us(9.994), us(38.157)], ["0.00 us", "9.99 us", "38.2 us"]);
        assert_eq!(percent(0.1325), "13.2 %");
        assert_eq!(ranges(&[0, 1, 2, 3, 8, 10, 11]), "0-3, 8, 10-11");
    }
}
