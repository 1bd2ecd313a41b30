//! Arbitrary input never panics: texts, YAML, changed examples and selectors.

use std::path::Path;

use comity_policy::{DeviceFacts, ProblemCode, SourceFile, load, read_directory, render_problems};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn examples() -> Vec<SourceFile> {
    read_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::with_cases(128)
    })]

    #[test]
    fn any_text_is_answered(text in "\\PC{0,200}") {
        let _ = load(vec![SourceFile { path: "a.yaml".into(), text }]);
    }

    #[test]
    fn any_yaml_like_text_is_answered(text in "([a-c:#\\-\\[\\]{}&*!|>'\"%@` \n\t?,]|---\n|\\.\\.\\.\n){0,120}") {
        let _ = load(vec![SourceFile { path: "a.yaml".into(), text }]);
    }

    #[test]
    fn any_change_of_the_examples_is_answered(
        file in 0_usize..14,
        at in 0.0_f64..1.0,
        removed in 0_usize..40,
        inserted in "[a-z0-9:{}\\[\\]\"'\n \\-&*|>]{0,12}",
    ) {
        let mut files = examples();
        let index = file % files.len();
        let chars: Vec<char> = files[index].text.chars().collect();
        let start = (chars.len() as f64 * at) as usize;
        let end = (start + removed).min(chars.len());
        let (kept, rest) = (chars[..start].iter().copied(), chars[end..].iter().copied());
        files[index].text = kept.chain(inserted.chars()).chain(rest).collect();
        match load(files) {
            Ok(bundle) => prop_assert_eq!(bundle.hash.len(), 64),
            Err(problems) => {
                prop_assert!(!problems.is_empty());
                prop_assert!(problems.iter().all(|problem| !problem.to_string().is_empty()));
            }
        }
    }

    #[test]
    fn any_selector_is_answered(
        source in "(device|\\.|memoryMiB|architecture|extra|attributes|capacity|gpu.nvidia.com|memory|matches|quantity|semver|\
                   compareTo|add|substring|split|findAll|sum|max|==|&&|\\|\\||!|\\(|\\)|\\[|\\]|\\{|\\}|\\?|\
                   :|'|\"|[0-9]{1,20}|in|has|-|,| |\\PC){0,60}",
    ) {
        if let Ok(selector) = comity_policy::compile_selector(&source) {
            let _ = selector.matches(&DeviceFacts::default());
        }
    }
}

#[test]
fn no_character_of_a_bundle_acts_on_a_terminal() {
    for (text, place) in [
        ("# a note\nkind: X # \u{1b}[2J\n", ":2:11"),
        ("# \u{202e}nimda\n", ":1:3"),
        ("kind: X\rkind: Y\n", ":1:8"),
        ("kind: ad\u{200b}min\n", ":1:9"),
        ("kind: X\n\u{feff}kind: Y\n", ":2:1"),
        ("# \u{e0061}\n", ":1:3"),
    ] {
        let problems = load(vec![SourceFile { path: "one.yaml".into(), text: text.into() }]).unwrap_err();
        assert_eq!(problems[0].code, ProblemCode::NotText, "{problems:?}");
        let shown = problems[0].to_string();
        assert!(shown.contains(place) && comity_types::is_printable_text(&shown), "{shown:?}");
    }
    // YAML's own escapes are characters of the value.
    let mut files = examples();
    let escaped = |text: &str| text.replace("description: Training", "description: \"\\e]0;owned\\a\" # Training");
    files.iter_mut().for_each(|file| file.text = escaped(&file.text));
    let problems = load(files).unwrap_err();
    assert!(render_problems(&problems).contains("has control or invisible characters"), "{problems:?}");
    let mut windows = examples();
    windows.iter_mut().for_each(|file| file.text = file.text.replace('\n', "\r\n"));
    assert!(load(windows).is_ok());
}
