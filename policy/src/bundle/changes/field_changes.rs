//! The fields in which two versions of a document differ, as people wrote them.

use std::collections::BTreeSet;

use super::FieldChange;
use crate::problem::shorten_to;
use crate::reading::yaml::{Node, Value};

/// Characters of a value that are shown.
const SHOWN_CHARS: usize = 240;
/// Fields that tell the items of a list apart.
const KEYS: [&str; 2] = ["id", "name"];

/// The differences between two versions of a `spec`.
pub(super) fn field_changes(before: &Node, after: &Node) -> Vec<FieldChange> {
    let mut found = Vec::new();
    compare("", before, after, &mut found);
    found
}

fn compare(path: &str, before: &Node, after: &Node, found: &mut Vec<FieldChange>) {
    match (&before.value, &after.value) {
        (Value::Map(old), Value::Map(new)) => {
            let inner = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            for (name, _, node) in new {
                match old.iter().find(|(other, ..)| other == name) {
                    Some((.., was)) => compare(&inner(name), was, node, found),
                    None => found.push(change(&inner(name), None, Some(node))),
                }
            }
            let is_gone = |name: &str| new.iter().all(|(other, ..)| other != name);
            let gone = old.iter().filter(|(name, ..)| is_gone(name));
            found.extend(gone.map(|(name, _, node)| change(&inner(name), Some(node), None)));
        }
        (Value::List(old), Value::List(new)) => compare_lists(path, old, new, found),
        _ if is_same(before, after) => {}
        _ => found.push(change(path, Some(before), Some(after))),
    }
}

/// Items that have a key are compared by it, scalars as a set, and others in their order.
fn compare_lists(path: &str, before: &[Node], after: &[Node], found: &mut Vec<FieldChange>) {
    let all = || before.iter().chain(after);
    if all().all(|item| matches!(item.value, Value::Scalar { .. })) {
        let texts = |items: &[Node]| items.iter().map(show).collect::<BTreeSet<String>>();
        let (old, new) = (texts(before), texts(after));
        found.extend(before.iter().filter(|item| !new.contains(&show(item))).map(|it| change(path, Some(it), None)));
        found.extend(after.iter().filter(|item| !old.contains(&show(item))).map(|it| change(path, None, Some(it))));
        return;
    }
    if let Some(key) = KEYS.into_iter().find(|key| all().all(|item| key_of(item, key).is_some())) {
        let path_of = |item: &Node| format!("{path}[{}]", key_of(item, key).unwrap_or_default());
        let has_key_of = |item: &Node, other: &&Node| key_of(other, key) == key_of(item, key);
        for item in after {
            match before.iter().find(|other| has_key_of(item, other)) {
                Some(was) => compare(&path_of(item), was, item, found),
                None => found.push(change(&path_of(item), None, Some(item))),
            }
        }
        let gone = before.iter().filter(|item| !after.iter().any(|other| has_key_of(item, &other)));
        found.extend(gone.map(|item| change(&path_of(item), Some(item), None)));
        return;
    }
    let first = before.iter().zip(after).take_while(|(old, new)| is_same(old, new)).count();
    let (old, new) = (&before[first..], &after[first..]);
    let last = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| is_same(old, new)).count();
    let (old, new) = (&old[..old.len() - last], &new[..new.len() - last]);
    for index in 0..old.len().max(new.len()) {
        let path = format!("{path}[{}]", first + index);
        match (old.get(index), new.get(index)) {
            (Some(old), Some(new)) => compare(&path, old, new, found),
            (old, new) => found.push(change(&path, old, new)),
        }
    }
}

fn change(path: &str, before: Option<&Node>, after: Option<&Node>) -> FieldChange {
    let shown = |node: &Node| shorten_to(&show(node), SHOWN_CHARS);
    FieldChange { path: path.to_owned(), before: before.map(shown), after: after.map(shown) }
}

fn key_of<'n>(item: &'n Node, key: &str) -> Option<&'n str> {
    let Value::Map(fields) = &item.value else { return None };
    let (.., node) = fields.iter().find(|(name, ..)| name == key)?;
    if let Value::Scalar { text, .. } = &node.value { Some(text) } else { None }
}

/// Whether two nodes have the same values, wherever and in whatever style they are written.
fn is_same(one: &Node, other: &Node) -> bool {
    match (&one.value, &other.value) {
        (Value::Scalar { text, .. }, Value::Scalar { text: other, .. }) => text.trim_end() == other.trim_end(),
        (Value::List(items), Value::List(others)) => {
            items.len() == others.len() && items.iter().zip(others).all(|(item, other)| is_same(item, other))
        }
        (Value::Map(fields), Value::Map(others)) => {
            let has_same =
                |name: &str, node: &Node| others.iter().any(|(it, _, other)| it == name && is_same(node, other));
            fields.len() == others.len() && fields.iter().all(|(name, _, node)| has_same(name, node))
        }
        _ => false,
    }
}

/// The value on one line, in YAML's flow style.
fn show(node: &Node) -> String {
    match &node.value {
        Value::Scalar { text, .. } => text.split_whitespace().collect::<Vec<_>>().join(" "),
        Value::List(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", ")),
        Value::Map(fields) => {
            let fields = fields.iter().map(|(name, _, node)| format!("{name}: {}", show(node)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
    }
}
