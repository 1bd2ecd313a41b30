//! CEL expressions over known facts: selectors over a device, conditions of rules over a request and its donor.
//!
//! Only a subset of CEL compiles: known names, comparisons within one type, no loops, no floating point. So an
//! expression has the same value on every replica, at a cost bounded by its length.

use std::fmt;
use std::sync::{Arc, LazyLock};

use cel::common::types::CelBool;
use cel::common::value::Val;
use cel::parser::Parser;
use cel::{Context, Env, ExecutionError, IdedExpr, Value};
use serde::{Serialize, Serializer};

use crate::limits::{MAX_EXPRESSION_BYTES, MAX_EXPRESSION_DEPTH};
use crate::problem::{ProblemCode, shorten};

pub(crate) use error::ExpressionError;
pub(crate) use quantity_value::QuantityValue;
pub(crate) use record_value::{RecordValue, number, text};
pub use rule_condition::RuleCondition;
pub(crate) use rule_condition::{parse_condition, parse_preference};
pub(crate) use rule_field::{RuleField, RuleValue};
pub use selector::{Selector, compile_selector};
pub(crate) use selector::{device_context, parse_selector};
pub(crate) use types::NameUse;
use types::{Reads, Vocabulary};

mod compiled_condition;
mod device_record;
mod error;
mod functions;
mod nesting;
mod quantity_value;
mod record_value;
mod rule_condition;
mod rule_field;
mod selector;
mod semver_value;
mod type_check;
mod types;

/// The functions of expressions. Building them costs more than thirty evaluations.
#[expect(clippy::expect_used, reason = "a test evaluates every function; declarations do not depend on input")]
static ENVIRONMENT: LazyLock<Arc<Env>> =
    LazyLock::new(|| Arc::new(functions::environment().expect("functions are declared once")));

/// The variables of an evaluation. Reuse it for several expressions.
pub(crate) fn context<'v>(variables: impl IntoIterator<Item = (&'static str, Box<dyn Val + 'v>)>) -> Context<'v, 'v> {
    let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
    for (name, value) in variables {
        context.add_variable_as_val(name, value);
    }
    context
}

/// A valid expression. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Expression {
    source: Arc<str>,
    tree: Arc<IdedExpr>,
}

impl Expression {
    /// The text that it was compiled from.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Whether the condition holds.
    ///
    /// # Errors
    /// The evaluation fails: a key is missing in a map, arithmetic overflows, or a text is no version or quantity.
    pub(crate) fn holds(&self, context: &Context<'_, '_>) -> Result<bool, ExecutionError> {
        let value = Value::resolve_val(&self.tree, context)?;
        let not_a_condition = || ExecutionError::function_error("condition", "not a condition");
        value.downcast_ref::<CelBool>().map(|value| *value.inner()).ok_or_else(not_a_condition)
    }

    /// Parses an expression and checks it against the vocabulary. Also returns what it reads. A failure has at least one error.
    pub(crate) fn parse(source: &str, vocabulary: &Vocabulary) -> Result<(Self, Reads), Vec<ExpressionError>> {
        let noun = vocabulary.noun;
        if source.len() > MAX_EXPRESSION_BYTES {
            let message = format!("the {noun} has {} bytes; at most {MAX_EXPRESSION_BYTES} are allowed", source.len());
            return Err(vec![ExpressionError::whole(ProblemCode::CelTooCostly, message, vocabulary.shorten)]);
        }
        if source.trim().is_empty() {
            return Err(vec![ExpressionError::whole(
                ProblemCode::CelSyntax,
                format!("the {noun} is empty"),
                format!("write for example `{}`", vocabulary.example),
            )]);
        }
        nesting::check_nesting(source, vocabulary)?;
        let depth = u16::try_from(MAX_EXPRESSION_DEPTH * 2).unwrap_or(u16::MAX);
        let (tree, places) =
            Parser::new().max_recursion_depth(depth).error_recovery_limit(4).parse_with_source_info(source).map_err(
                |errors| {
                    let errors = errors.errors.iter().take(4);
                    errors.map(|error| syntax_error(source, vocabulary, error)).collect::<Vec<_>>()
                },
            )?;
        let reads = type_check::check_types(source, vocabulary, &tree, &places)?;
        Ok((Self { source: source.into(), tree: Arc::new(tree) }, reads))
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.source).finish()
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Expression {}

impl Serialize for Expression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.source)
    }
}

fn syntax_error(source: &str, vocabulary: &Vocabulary, error: &cel::ParseError) -> ExpressionError {
    // Line and column count from 1; some internal errors have none.
    let line = usize::try_from(error.pos.0).unwrap_or(1).max(1);
    let column = usize::try_from(error.pos.1).unwrap_or(1).max(1);
    let before: usize = source.split_inclusive('\n').take(line - 1).map(|line| line.chars().count()).sum();
    let message = error.msg.lines().next().unwrap_or_default();
    let message = message.strip_prefix("Syntax error: ").unwrap_or(message);
    // The parser lists every token that could follow; the first half of its sentence says enough.
    let message = message.split(" expecting ").next().unwrap_or(message);
    ExpressionError {
        at: before + column - 1,
        width: 1,
        code: ProblemCode::CelSyntax,
        message: format!("the {} is not CEL: {}", vocabulary.noun, shorten(message)),
        remedy: format!("a {} looks like `{}`", vocabulary.noun, vocabulary.example),
    }
}
