//! Results of policy tests as JUnit XML, which pipelines show.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::views::{PolicyTested, ScenarioResult};

/// The results: a suite for each file, a case for each scenario.
pub(super) fn junit(tested: &PolicyTested) -> String {
    let mut suites: BTreeMap<&str, Vec<&ScenarioResult>> = BTreeMap::new();
    for scenario in &tested.scenarios {
        suites.entry(&scenario.file).or_default().push(scenario);
    }
    let mut xml =
        String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"comity policy test\">\n");
    for problem in &tested.problems {
        let (file, message) = (attribute(&problem.file), attribute(&problem.message));
        let _ = write!(
            xml,
            "  <testsuite name=\"{file}\" tests=\"1\" errors=\"1\">\n    <testcase name=\"{file}:{}\" \
             classname=\"{file}\">\n      <error message=\"{message}\">{}</error>\n    </testcase>\n  </testsuite>\n",
            problem.line,
            attribute(&problem.rendered),
        );
    }
    for (file, scenarios) in suites {
        let failures = scenarios.iter().filter(|scenario| !scenario.report().is_empty()).count();
        let file = attribute(file);
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{file}\" tests=\"{}\" failures=\"{failures}\" errors=\"0\">",
            scenarios.len()
        );
        for scenario in scenarios {
            let case = format!(
                "    <testcase name=\"{}\" classname=\"{file}\" file=\"{file}\" line=\"{}\"",
                attribute(&scenario.name),
                scenario.line
            );
            let report = scenario.report();
            let _ = if report.is_empty() {
                writeln!(xml, "{case}/>")
            } else {
                writeln!(
                    xml,
                    "{case}>\n      <failure message=\"{}\">{}</failure>\n    </testcase>",
                    attribute(&scenario.message),
                    attribute(&report)
                )
            };
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

/// Text for an attribute or an element. XML has no way to write most control characters.
fn attribute(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_reports_are_escaped() {
        let scenario = |name: &str, result| ScenarioResult {
            file: "a.test.yaml".to_owned(),
            line: 7,
            name: name.to_owned(),
            result,
            differences: Vec::new(),
            message: "a < b & \"c\"\u{1b}".to_owned(),
            reasons: Vec::new(),
        };
        let scenarios = vec![scenario("one", "passed"), scenario("<two>", "failed")];
        let xml = junit(&PolicyTested { ok: false, problems: Vec::new(), scenarios, left_out: 0 });
        assert!(xml.contains("tests=\"2\" failures=\"1\""), "{xml}");
        assert!(
            xml.contains("<testcase name=\"one\" classname=\"a.test.yaml\" file=\"a.test.yaml\" line=\"7\"/>"),
            "{xml}"
        );
        assert!(xml.contains("name=\"&lt;two&gt;\"") && xml.contains("a &lt; b &amp; &quot;c&quot;\u{fffd}"), "{xml}");
    }
}
