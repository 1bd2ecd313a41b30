//! Reads the text format of Prometheus: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::borrow::Cow;

/// One line with a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample<'t> {
    pub(crate) name: &'t str,
    labels: Vec<(&'t str, Cow<'t, str>)>,
    pub(crate) value: f64,
}

impl Sample<'_> {
    /// A label's value; empty for an absent label, as in Prometheus.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }
}

/// A label's value as it is written between quotes.
pub(crate) fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The samples of the metrics in `names`. Lines that cannot be read are left out.
pub(crate) fn samples<'t>(text: &'t str, names: &[&str]) -> impl Iterator<Item = Sample<'t>> {
    text.lines()
        .filter(|line| names.iter().any(|name| line.starts_with(name)))
        .filter_map(sample)
        .filter(|sample| names.contains(&sample.name))
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    // A timestamp may follow.
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name, labels, value })
}

type Labels<'t> = Vec<(&'t str, Cow<'t, str>)>;

/// The labels up to the closing brace, and the text after it.
fn labels(mut text: &str) -> Option<(Labels<'_>, &str)> {
    let mut labels = Vec::new();
    loop {
        text = text.trim_start_matches([' ', ',']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (key, rest) = text.split_once("=\"")?;
        let (value, rest) = quoted(rest)?;
        labels.push((key.trim(), value));
        text = rest;
    }
}

/// The text up to the closing quote, without its escapes, and the text after the quote.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let end = text.find(['"', '\\'])?;
    if let Some(rest) = text.get(end..)?.strip_prefix('"') {
        return Some((Cow::Borrowed(text.get(..end)?), rest));
    }
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((index, letter)) = letters.next() {
        match letter {
            '"' => return Some((Cow::Owned(value), text.get(index + 1..)?)),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_with_their_escapes() {
        let text =
            "# HELP up Up.\n# TYPE up gauge\nup{a=\"1\",b=\"x \\\"y\\\" \\\\ z\\n\",} 1 1700000000000\nup 0\nupper 3\n";
        let all: Vec<_> = samples(text, &["up"]).collect();
        assert_eq!(all.iter().map(|one| one.value).collect::<Vec<_>>(), [1.0, 0.0]);
        let first = all.first().unwrap();
        assert_eq!((first.label("a"), first.label("b"), first.label("c")), ("1", "x \"y\" \\ z\n", ""));
    }

    #[test]
    fn an_escaped_value_is_read_as_it_was() {
        for value in ["GPU-1::2", "a\"b\\c\nd", ""] {
            let line = format!("up{{a=\"{}\"}} 1", escaped(value));
            assert_eq!(samples(&line, &["up"]).next().unwrap().label("a"), value);
        }
    }

    #[test]
    fn lines_that_are_cut_off_or_odd_are_left_out() {
        for line in
            ["up", "up{", "up{a=", "up{a=\"1", "up{a=\"1\\", "up{a=\"1\"", "up{a=\"1\"}", "up{a=\"1\"} x", "up{a}"]
        {
            assert_eq!(samples(line, &["up"]).count(), 0, "{line}");
        }
    }
}
