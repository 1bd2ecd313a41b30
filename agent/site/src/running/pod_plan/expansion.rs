//! `$(NAME)` in variables, commands and arguments.

/// Replaces `$(NAME)` by the variable's value; `$$` stands for `$`, and references to unknown variables stay, as in
/// Kubernetes (Container v1 core: `command`, `args`, `env.value`).
pub(crate) fn expand<'a>(text: &str, value_of: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, after) = rest.split_at(at);
        expanded.push_str(before);
        let after = &after[1..];
        rest = if let Some(escaped) = after.strip_prefix('$') {
            expanded.push('$');
            escaped
        } else if let Some((name, end)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match value_of(name) {
                Some(value) => expanded.push_str(value),
                None => {
                    expanded.push_str("$(");
                    expanded.push_str(name);
                    expanded.push(')');
                }
            }
            end
        } else {
            expanded.push('$');
            after
        };
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn references_are_replaced_as_kubernetes_does() {
        let value_of = |name: &str| (name == "A").then_some("1");
        for (text, expected) in [
            ("x", "x"),
            ("$(A)-$(A)", "1-1"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(A", "$(A"),
            ("50$", "50$"),
            ("$A", "$A"),
        ] {
            assert_eq!(expand(text, value_of), expected, "{text}");
        }
    }
}
