//! Checks names, types and cost of a parsed expression.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, SelectExpr, SourceInfo, operators};

use super::ExpressionError;
use super::functions::{FUNCTIONS, METHODS, result_type, usage};
use super::quantity_value::QuantityValue;
use super::semver_value::SemverValue;
use super::types::{Field, NameUse, Reads, Record, Type, Vocabulary};
use crate::limits::{MAX_EXPRESSION_DEPTH, MAX_PATTERN_BYTES};
use crate::problem::suggest::did_you_mean;
use crate::problem::{ProblemCode, shorten};
use crate::reading::fields::Target;

/// Checks an expression; returns what it reads. A failure has at least one error.
pub(super) fn check_types(
    source: &str,
    vocabulary: &Vocabulary,
    expression: &IdedExpr,
    places: &SourceInfo,
) -> Result<Reads, Vec<ExpressionError>> {
    let mut checker = Checker { source, vocabulary, places, errors: Vec::new(), reads: Reads::default() };
    let found = checker.type_of(expression, 0);
    if !matches!(found, Type::Bool | Type::Invalid) {
        let message = format!("the {} must be a condition, but it is {}", vocabulary.noun, found.noun());
        checker.report(expression.id, ProblemCode::CelType, message, "compare it with something");
    }
    if checker.errors.is_empty() { Ok(checker.reads) } else { Err(checker.errors) }
}

struct Checker<'c> {
    source: &'c str,
    vocabulary: &'c Vocabulary,
    places: &'c SourceInfo,
    errors: Vec<ExpressionError>,
    reads: Reads,
}

impl Checker<'_> {
    /// Offset and width of the expression `id`.
    fn place_of(&self, id: u64) -> (usize, usize) {
        let (start, stop) = self.places.offset_for(id).unwrap_or_default();
        let (start, stop) = (start as usize, stop as usize);
        (start, (stop + 1).saturating_sub(start).clamp(1, self.source.len().max(1)))
    }

    /// Notes the names in a comparison with a field that names something.
    fn note_names(&mut self, call: &CallExpr) {
        let ([left, right], None) = (call.args.as_slice(), &call.target) else { return };
        let (target, literals): (_, Vec<&IdedExpr>) = match (call.func_name.as_str(), &right.expr) {
            (operators::IN, Expr::List(list)) => (self.target_of(left), list.elements.iter().collect()),
            (operators::EQUALS | operators::NOT_EQUALS, _) => {
                (self.target_of(left).or_else(|| self.target_of(right)), vec![left, right])
            }
            _ => return,
        };
        let Some(target) = target else { return };
        for (id, name) in literals.into_iter().filter_map(literal_text).filter(|(_, name)| !name.is_empty()) {
            let (at, width) = self.place_of(id);
            self.reads.names.push(NameUse { target, name: name.to_owned(), at, width });
        }
    }

    /// What a field of a variable names.
    fn target_of(&self, expression: &IdedExpr) -> Option<Target> {
        let Expr::Select(SelectExpr { operand, field, test: false }) = &expression.expr else { return None };
        let Expr::Ident(name) = &operand.expr else { return None };
        let variable = self.vocabulary.variables.iter().find(|variable| variable.name == name)?;
        let Type::Record(record) = variable.field_type else { return None };
        record.field(field)?.names
    }

    /// Records an error at the expression `id`. Returns [`Type::Invalid`].
    fn report(&mut self, id: u64, code: ProblemCode, message: impl Into<String>, remedy: impl Into<String>) -> Type {
        let (at, width) = self.place_of(id);
        self.errors.push(ExpressionError { at, width, code, message: message.into(), remedy: remedy.into() });
        Type::Invalid
    }

    /// Like [`report`](Self::report), but underlines `word`: CEL gives the position of the `.` before a field and of
    /// the `(` after a function.
    fn report_at_word(
        &mut self,
        id: u64,
        word: &str,
        code: ProblemCode,
        message: String,
        remedy: impl Into<String>,
    ) -> Type {
        let found = self.report(id, code, message, remedy);
        let chars: Vec<char> = self.source.chars().collect();
        let length = word.chars().count();
        if let Some(error) = self.errors.last_mut() {
            let is_word = |at: &usize| chars.iter().skip(*at).take(length).copied().eq(word.chars());
            let after = (error.at..chars.len())
                .take_while(|at| *at == error.at || chars[at - 1] == '.' || chars[at - 1].is_whitespace());
            let before = error.at.checked_sub(length);
            if let Some(at) = before.filter(is_word).or_else(|| after.into_iter().find(is_word)) {
                (error.at, error.width) = (at, length);
            }
        }
        found
    }

    fn type_of(&mut self, expression: &IdedExpr, depth: usize) -> Type {
        let id = expression.id;
        if depth > MAX_EXPRESSION_DEPTH {
            let message = format!("the {} nests more than {MAX_EXPRESSION_DEPTH} levels deep", self.vocabulary.noun);
            return self.report(id, ProblemCode::CelTooCostly, message, self.vocabulary.shorten);
        }
        match &expression.expr {
            Expr::Literal(literal) => self.literal(id, literal),
            Expr::Ident(name) => self.identifier(id, name),
            Expr::Select(select) => self.select(id, select, depth),
            Expr::Call(call) => self.call(id, call, depth),
            Expr::List(list) => {
                let types: Vec<Type> = list.elements.iter().map(|element| self.type_of(element, depth + 1)).collect();
                let Some(first) = types.iter().find_map(|found| found.scalar()) else {
                    return if types.contains(&Type::Invalid) {
                        Type::Invalid
                    } else {
                        self.report(id, ProblemCode::CelType, "a list must have texts or numbers", "")
                    };
                };
                if types.iter().any(|found| *found != Type::Invalid && found.scalar() != Some(first)) {
                    return self.report(
                        id,
                        ProblemCode::CelType,
                        "the list mixes types",
                        "write all of them as text, or all as numbers",
                    );
                }
                Type::ListOf(first)
            }
            Expr::Comprehension(_) => self.refuse(
                id,
                ProblemCode::CelTooCostly,
                "`all`, `exists`, `map` and `filter`",
                "use `in [..]`, `&&` and `||`: there is no list of things to go through",
            ),
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => {
                let remedy = format!("write for example `{}`", self.vocabulary.example);
                self.refuse(id, ProblemCode::CelType, "maps and messages", &remedy)
            }
        }
    }

    /// Reports something that these expressions cannot have.
    fn refuse(&mut self, id: u64, code: ProblemCode, things: &str, remedy: &str) -> Type {
        self.report(id, code, format!("{things} are not allowed in {}s", self.vocabulary.noun), remedy)
    }

    fn literal(&mut self, id: u64, literal: &LiteralValue) -> Type {
        match literal {
            LiteralValue::Boolean(_) => Type::Bool,
            LiteralValue::Int(_) => Type::Int,
            LiteralValue::String(_) => Type::Text,
            LiteralValue::Double(_) => self.refuse(
                id,
                ProblemCode::CelType,
                "fractions",
                "write a whole number, or a quantity such as `quantity(\"0.5\")`",
            ),
            LiteralValue::UInt(_) => self.refuse(id, ProblemCode::CelType, "unsigned numbers", "remove the `u`"),
            LiteralValue::Bytes(_) | LiteralValue::Null => {
                self.refuse(id, ProblemCode::CelType, "bytes and null", "unknown values are `\"\"` or 0")
            }
        }
    }

    fn identifier(&mut self, id: u64, name: &str) -> Type {
        let variables = self.vocabulary.variables;
        if let Some(variable) = variables.iter().find(|variable| variable.name == name) {
            return variable.field_type;
        }
        let has_field =
            |variable: &&Field| matches!(variable.field_type, Type::Record(record) if record.field(name).is_some());
        let names: Vec<&str> = variables.iter().map(|variable| variable.name).collect();
        let remedy = match (variables.iter().find(has_field), names.as_slice()) {
            (Some(variable), _) => format!("did you mean `{}.{name}`?", variable.name),
            (None, [only]) => format!("the only variable is `{only}`"),
            (None, names) => did_you_mean(name, names),
        };
        self.report(id, ProblemCode::CelUnknownName, format!("there is no variable `{name}`"), remedy)
    }

    fn select(&mut self, id: u64, select: &SelectExpr, depth: usize) -> Type {
        let found = match self.type_of(&select.operand, depth + 1) {
            Type::Record(record) => self.field_of(id, record, &select.field),
            Type::TextMap => Type::Text,
            Type::Invalid => Type::Invalid,
            other => {
                let message = format!("{} has no field `{}`", other.noun(), select.field);
                self.report(id, ProblemCode::CelType, message, "")
            }
        };
        if select.test && found != Type::Invalid { Type::Bool } else { found }
    }

    /// The type of a record's field, which the expression names at `id`.
    fn field_of(&mut self, id: u64, record: &Record, name: &str) -> Type {
        if let Some(field) = record.field(name) {
            self.reads.demand |= field.of_demand;
            return field.field_type;
        }
        let message = format!("{} has no {} `{name}`", record.noun, record.field_noun);
        self.report_at_word(id, name, ProblemCode::CelUnknownName, message, did_you_mean(name, &record.names()))
    }

    fn call(&mut self, id: u64, call: &CallExpr, depth: usize) -> Type {
        let target = call.target.as_ref().map(|target| self.type_of(target, depth + 1));
        let types: Vec<Type> = call.args.iter().map(|argument| self.type_of(argument, depth + 1)).collect();
        if target == Some(Type::Invalid) || types.contains(&Type::Invalid) {
            return Type::Invalid;
        }
        self.note_names(call);
        let name = call.func_name.as_str();
        match (target, name, types.as_slice()) {
            (None, operators::INDEX, [Type::Record(record), Type::Text]) => match call.args.get(1).and_then(literal_text) {
                Some((place, field)) => self.field_of(place, record, field),
                None => {
                    let message = format!("the {} of {} must be a literal", record.field_noun, record.noun);
                    self.report(id, ProblemCode::CelType, message, "write it in quotes")
                }
            },
            (
                None,
                operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
                [Type::Text, Type::Text],
            ) => self.report(
                id,
                ProblemCode::CelType,
                "texts have no useful order: \"10.0\" comes before \"9.0\"",
                "compare numbers such as `device.cudaComputeMajor`, or versions: `semver(a, true).isLessThan(semver(b, true))`",
            ),
            (
                None,
                operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
                [compared @ (Type::Quantity | Type::Semver), _] | [_, compared @ (Type::Quantity | Type::Semver)],
            ) => {
                let other = if *compared == Type::Quantity { "quantity(\"8\")" } else { "semver(\"550.0.0\")" };
                self.report(
                    id,
                    ProblemCode::CelType,
                    "quantities and versions are compared by functions",
                    format!("use `isGreaterThan`, `isLessThan` or `compareTo`, as in `….isGreaterThan({other})`"),
                )
            }
            (Some(Type::Text), "matches" | "find" | "findAll", [Type::Text, ..]) => {
                self.check_pattern(id, call).unwrap_or_else(|| self.result_of(id, target, name, &types))
            }
            (None, "quantity" | "semver", [Type::Text, ..]) => {
                self.check_literal(call).unwrap_or_else(|| self.result_of(id, target, name, &types))
            }
            (target, name, types) => {
                operator_type(target, name, types).unwrap_or_else(|| self.result_of(id, target, name, types))
            }
        }
    }

    fn result_of(&mut self, id: u64, target: Option<Type>, name: &str, types: &[Type]) -> Type {
        result_type(target, name, types).unwrap_or_else(|| self.report_invalid_call(id, target, name, types))
    }

    /// Reports a pattern that is not a short literal without counted repetition: every evaluation compiles it.
    fn check_pattern(&mut self, id: u64, call: &CallExpr) -> Option<Type> {
        let Some((place, pattern)) = call.args.first().and_then(literal_text) else {
            let message = format!("the pattern of `{}` must be a literal", call.func_name);
            return Some(self.report(id, ProblemCode::CelTooCostly, message, "write it in quotes"));
        };
        if pattern.len() > MAX_PATTERN_BYTES || pattern.contains(['{', '\\']) {
            let message = format!("the pattern is longer than {MAX_PATTERN_BYTES} bytes, or uses `{{` or `\\`");
            let remedy = "use `startsWith`, `contains` or `in [..]`";
            return Some(self.report(place, ProblemCode::CelTooCostly, message, remedy));
        }
        regex::Regex::new(pattern)
            .is_err()
            .then(|| self.report(place, ProblemCode::CelSyntax, format!("`{pattern}` is not a regular expression"), ""))
    }

    /// Reports a literal that is no quantity or version.
    fn check_literal(&mut self, call: &CallExpr) -> Option<Type> {
        let (place, text) = call.args.first().and_then(literal_text)?;
        let is_lenient = matches!(
            call.args.get(1).map(|argument| &argument.expr),
            Some(Expr::Literal(LiteralValue::Boolean(lenient))) if *lenient.inner()
        );
        let (is_valid, noun, remedy) = match call.func_name.as_str() {
            "quantity" => (QuantityValue::parse(text).is_some(), "quantity", "write for example `quantity(\"40Gi\")`"),
            _ if is_lenient => {
                (SemverValue::parse_lenient(text).is_some(), "version", "write for example `semver(\"9.0\", true)`")
            }
            // Whether it is lenient depends on facts.
            _ if call.args.len() > 1 && SemverValue::parse_lenient(text).is_some() => return None,
            _ => (
                SemverValue::parse(text).is_some(),
                "version",
                "write three numbers, as in `semver(\"570.86.15\")`, or `semver(\"9.0\", true)` for fewer",
            ),
        };
        let message = format!("`{}` is not a {noun}", shorten(text));
        (!is_valid).then(|| self.report(place, ProblemCode::CelType, message, remedy))
    }

    fn report_invalid_call(&mut self, id: u64, target: Option<Type>, name: &str, types: &[Type]) -> Type {
        if let Some(symbol) = operator_symbol(name) {
            let nouns: Vec<&str> = types.iter().map(|found| found.noun()).collect();
            let message = format!("`{symbol}` does not apply to {}", nouns.join(" and "));
            return self.report(id, ProblemCode::CelType, message, "both sides must be of the same type");
        }
        let known: &[&str] = if target.is_some() { &METHODS } else { &FUNCTIONS };
        if known.contains(&name) {
            let of = target.map_or_else(String::new, |target| format!(" of {}", target.noun()));
            let given: Vec<&str> = types.iter().map(|found| found.noun()).collect();
            let with = if given.is_empty() { "no arguments".to_owned() } else { given.join(" and ") };
            let message = format!("`{name}`{of} does not work with {with}");
            return self.report_at_word(id, name, ProblemCode::CelType, message, usage(name));
        }
        let message = format!("there is no function `{name}` in {}s", self.vocabulary.noun);
        self.report_at_word(id, name, ProblemCode::CelUnknownName, message, did_you_mean(name, known))
    }
}

/// The type of an operator's result; `None` if it does not apply.
fn operator_type(target: Option<Type>, name: &str, types: &[Type]) -> Option<Type> {
    if target.is_some() {
        return None;
    }
    Some(match (name, types) {
        (operators::LOGICAL_AND | operators::LOGICAL_OR, [Type::Bool, Type::Bool])
        | (operators::LOGICAL_NOT, [Type::Bool])
        | (
            operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
            [Type::Int, Type::Int],
        )
        | (operators::IN, [Type::Text, Type::TextMap | Type::Record(_)]) => Type::Bool,
        (operators::EQUALS | operators::NOT_EQUALS, [left, right]) if left == right && left.has_equality() => {
            Type::Bool
        }
        (operators::IN, [element, Type::ListOf(item)]) if element.scalar() == Some(*item) => Type::Bool,
        (
            operators::ADD | operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO,
            [Type::Int, Type::Int],
        )
        | (operators::NEGATE, [Type::Int]) => Type::Int,
        (operators::ADD, [Type::Text, Type::Text]) | (operators::INDEX, [Type::TextMap, Type::Text]) => Type::Text,
        (operators::CONDITIONAL, [Type::Bool, left, right]) if left == right => *left,
        (operators::INDEX, [Type::ListOf(item), Type::Int]) => item.as_type(),
        _ => return None,
    })
}

/// A text literal, and the id of its expression.
fn literal_text(expression: &IdedExpr) -> Option<(u64, &str)> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some((expression.id, text.inner())),
        _ => None,
    }
}

/// The symbol of an operator, which CEL names `_symbol_`.
fn operator_symbol(name: &str) -> Option<String> {
    if name == operators::IN {
        return Some("in".to_owned());
    }
    let bare: String = name.chars().filter(|c| *c != '_').collect();
    (!bare.is_empty() && bare.chars().all(|c| c.is_ascii_punctuation()) && name != bare).then_some(bare)
}
