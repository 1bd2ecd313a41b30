//! Compares output with a page.

use regex::Regex;

/// Replaces parts that differ from run to run.
#[derive(Debug)]
pub struct Masks {
    masks: Vec<(Regex, &'static str)>,
    numbers: Regex,
    spaces: Regex,
}

impl Default for Masks {
    fn default() -> Self {
        let masks = [
            (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z| UTC)?", "TIME"),
            (r"\b(127\.0\.0\.1|localhost|\[::1\]):\d+", "ADDRESS"),
            (r"\b([0-9a-f]{40,64}|[0-9a-f]{16}|[0-9a-f]{12}|[0-9a-f]{8})\b", "HASH"),
            (r"\b(\d+d)?(\d+h)?(\d+m)?\d+s\b|\b\d+[dhm](\d+[hm])?\b", "DURATION"),
            (r"[+-]?\b\d+(\.\d+)? (ms|s|min|MiB)\b", "AMOUNT"),
            // An age in a table.
            (r"  +now(  |$)", "  DURATION ago  "),
            ("\"(total_ms|ms)\":\\d+", "\"ms\":N"),
            (r"\bbroker \d leads\b", "broker N leads"),
            (r"\bcomity-join-\S+", "TOKEN"),
            (r"COMITY_BROKER=\S+", "COMITY_BROKER=ADDRESSES"),
        ];
        let regex = |text: &str| Regex::new(text).unwrap_or_else(|error| panic!("{error}"));
        Self {
            masks: masks.into_iter().map(|(pattern, name)| (regex(pattern), name)).collect(),
            numbers: regex(r"\d+"),
            spaces: regex(r"[ \t]+|[─-]{3,}"),
        }
    }
}

impl Masks {
    fn mask(&self, line: &str, any_numbers: bool) -> String {
        let mut line = line.to_owned();
        for (regex, name) in &self.masks {
            line = regex.replace_all(&line, *name).into_owned();
        }
        if any_numbers {
            line = self.numbers.replace_all(&line, "N").into_owned();
        }
        self.spaces.replace_all(line.trim(), " ").into_owned()
    }

    /// The first line of `shown` that `printed` does not have, `None` if they are equal.
    #[must_use]
    pub fn difference(&self, shown: &[String], printed: &[String], any_numbers: bool) -> Option<String> {
        let lines = |lines: &[String]| -> Vec<String> {
            let mut lines: Vec<String> = lines.iter().map(|line| self.mask(line, any_numbers)).collect();
            while lines.last().is_some_and(String::is_empty) {
                lines.pop();
            }
            lines
        };
        let (shown, printed) = (lines(shown), lines(printed));
        let mut rest = printed.as_slice();
        let mut skips = false;
        for line in &shown {
            if line == "…" {
                skips = true;
                continue;
            }
            let matches = |found: &String| match line.strip_suffix('…') {
                Some(start) => found.starts_with(start.trim_end()),
                None => found == line,
            };
            let found =
                if skips { rest.iter().position(matches) } else { rest.first().filter(|l| matches(l)).map(|_| 0) };
            match found {
                Some(at) => rest = rest.get(at + 1..).unwrap_or_default(),
                None => {
                    let printed = if skips { None } else { rest.first() };
                    return Some(format!("shown:   {line}\nprinted: {}", printed.map_or("(no such line)", |l| l)));
                }
            }
            skips = false;
        }
        match rest.first() {
            Some(line) if !skips => Some(format!("shown:   (nothing more)\nprinted: {line}")),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn times_ids_and_widths_may_differ_and_words_may_not() {
        let masks = Masks::default();
        let shown =
            lines("LEASE    STATE   EXPIRES\nlease-1  active  in 59m23s\nat 127.0.0.1:33101, 41 ms, acfc26f8031997ca");
        let printed = lines("LEASE STATE EXPIRES\nlease-1 active in 1h2m3s\nat 127.0.0.1:9, 7 ms, 02984667f718d7d9\n");
        assert_eq!(masks.difference(&shown, &printed, false), None);
        let other = lines("LEASE STATE EXPIRES\nlease-1 ended in 1h2m3s");
        assert!(masks.difference(&shown, &other, false).is_some_and(|text| text.contains("lease-1 ended")));
        assert!(masks.difference(&shown[..1], &printed, false).is_some_and(|text| text.contains("nothing more")));
        assert!(masks.difference(&lines("7 of 8"), &lines("6 of 8"), false).is_some());
        assert_eq!(masks.difference(&lines("7 of 8"), &lines("6 of 9"), true), None);
    }

    #[test]
    fn dots_stand_for_lines_and_for_the_rest_of_a_line() {
        let masks = Masks::default();
        let printed = lines("a\nb\nc and more\nd");
        assert_eq!(masks.difference(&lines("a\n…\nc and …\n…"), &printed, false), None);
        assert!(masks.difference(&lines("a\n…\nx"), &printed, false).is_some_and(|text| text.contains("no such line")));
        assert!(masks.difference(&lines("a\nc …\n…"), &printed, false).is_some());
    }
}
