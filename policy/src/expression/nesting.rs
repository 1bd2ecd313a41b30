//! Bounds the nesting of an expression before CEL's recursive parser sees it.

use comity_types::is_steering;

use super::ExpressionError;
use super::types::Vocabulary;
use crate::limits::MAX_EXPRESSION_DEPTH;
use crate::problem::ProblemCode;

/// Refuses deeply nested expressions. Also refuses escapes, triple quotes and comments, so that the end of quoted text is
/// certain, and characters that would steer the terminal of who reads it.
pub(super) fn check_nesting(source: &str, vocabulary: &Vocabulary) -> Result<(), Vec<ExpressionError>> {
    let (mut open, mut conditionals, mut chained, mut arithmetic) = (0_usize, 0_usize, 0_usize, 0_usize);
    let mut quote = None;
    let chars: Vec<char> = source.chars().collect();
    for (at, &c) in chars.iter().enumerate() {
        let next = chars.get(at + 1).copied();
        if is_steering(c) && !matches!(c, '\n' | '\t' | '\r') {
            return syntax_error(
                at,
                "control and invisible characters are not allowed in CEL here",
                "delete the character",
            );
        }
        if c == '\\' || (c == '/' && next == Some('/') && quote.is_none()) {
            return syntax_error(at, "escapes and comments are not allowed in CEL here", "use YAML comments");
        }
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), '\n') => return syntax_error(at, "quoted text must end on its line", "close the quote"),
            (Some(_), _) => {}
            (None, '\'' | '"') if next == Some(c) && chars.get(at + 2) == Some(&c) => {
                return syntax_error(at, "triple quotes are not allowed in CEL here", "use one quote");
            }
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => open += 1,
            (None, ')' | ']' | '}') => open = open.saturating_sub(1),
            (None, '?') => conditionals += 1,
            (None, '+' | '*' | '/' | '%') => arithmetic += 1,
            (None, '-') => (arithmetic, chained) = (arithmetic + 1, chained + 1),
            (None, '!' | '.') => chained += 1,
            (None, '&' | '|') => chained = 0,
            (None, _) => {}
        }
        if open.max(conditionals).max(arithmetic / 2).max(chained / 2) > MAX_EXPRESSION_DEPTH {
            return Err(vec![ExpressionError {
                at,
                width: 1,
                code: ProblemCode::CelTooCostly,
                message: format!("the {} nests more than {MAX_EXPRESSION_DEPTH} levels deep", vocabulary.noun),
                remedy: vocabulary.shorten.to_owned(),
            }]);
        }
    }
    Ok(())
}

fn syntax_error(at: usize, message: &str, remedy: &str) -> Result<(), Vec<ExpressionError>> {
    Err(vec![ExpressionError {
        at,
        width: 1,
        code: ProblemCode::CelSyntax,
        message: message.to_owned(),
        remedy: remedy.to_owned(),
    }])
}
