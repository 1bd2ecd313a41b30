//! Reads a field that is a CEL expression.

use crate::expression::{ExpressionError, NameUse};
use crate::problem::shorten;
use crate::reading::fields::{FieldReader, Reference};
use crate::reading::yaml::{Node, Value, place_within};

/// Reads and compiles an expression. Reports all its errors, at their places within the text, and notes the names that
/// must be known.
pub(super) fn read_expression<T>(
    reader: &mut FieldReader<'_, '_>,
    path: &str,
    node: &Node,
    parse: impl Fn(&str) -> Result<(T, Vec<NameUse>), Vec<ExpressionError>>,
) -> Option<T> {
    let source = reader.scalar(path, node)?;
    let Value::Scalar { byte_start, .. } = &node.value else {
        return None;
    };
    let text = reader.problems.files().get(node.place.file).map_or("", |file| file.text.as_str());
    let place_of = |at, width| place_within(text, node.place, *byte_start, source, at, width);
    match parse(source.trim_end()) {
        Ok((expression, names)) => {
            let references = names.into_iter().map(|NameUse { target, name, at, width }| Reference {
                target,
                name,
                place: place_of(at, width),
            });
            reader.references.extend(references);
            Some(expression)
        }
        Err(errors) => {
            for error in errors {
                let place = place_of(error.at, error.width);
                let message = format!("`{path}` of {}: {}", reader.label, one_line(&error.message));
                reader.problems.at(place, error.code, message, error.remedy);
            }
            None
        }
    }
}

/// A message about an expression on one line; shortened if it is long, for it may quote the expression.
fn one_line(message: &str) -> String {
    if message.chars().count() > 160 { shorten(message) } else { message.replace('\n', " ") }
}
