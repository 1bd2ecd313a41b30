//! Generates `RequiredFields` for each message of `comity.v1` from the comments that begin with "Required", so that the
//! documentation and the check agree.

use std::collections::HashMap;
use std::fmt::Write as _;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

/// Field numbers of descriptors. A comment's path is a list of them.
const MESSAGES_OF_FILE: i32 = 4;
const FIELDS_OF_MESSAGE: i32 = 2;
const MESSAGES_OF_MESSAGE: i32 = 3;
const ONEOFS_OF_MESSAGE: i32 = 8;

/// The implementations as Rust source.
pub(crate) fn generate(files: &FileDescriptorSet) -> String {
    let mut source = String::new();
    for file in files.file.iter().filter(|file| file.package() == "comity.v1") {
        let locations = file.source_code_info.iter().flat_map(|info| &info.location);
        let comments =
            locations.map(|it| (it.path.as_slice(), it.leading_comments.as_deref().unwrap_or_default())).collect();
        let mut generator = Generator { comments, source: &mut source };
        for (index, message) in (0..).zip(&file.message_type) {
            generator.message(&[MESSAGES_OF_FILE, index], "", message);
        }
    }
    source
}

struct Generator<'a> {
    comments: HashMap<&'a [i32], &'a str>,
    source: &'a mut String,
}

/// When a field counts as missing if it is not set.
enum Rule<'a> {
    Optional,
    Required { hint: String },
    RequiredUnless { other: &'a str, hint: String },
}

impl<'a> Generator<'a> {
    fn message(&mut self, path: &[i32], module: &str, message: &DescriptorProto) {
        let mut body = String::new();
        for (index, field) in (0..).zip(&message.field) {
            if field.oneof_index.is_none() || field.proto3_optional() {
                self.field(&join(path, FIELDS_OF_MESSAGE, index), field, &mut body);
            }
        }
        for (index, oneof) in (0..).zip(&message.oneof_decl) {
            let variants: Vec<_> = message.field.iter().filter(|field| field.oneof_index == Some(index)).collect();
            if variants.iter().all(|field| !field.proto3_optional()) {
                let enumeration = format!("v1::{module}{}::{}", snake(message.name()), camel(oneof.name()));
                let rule = self.rule(&join(path, ONEOFS_OF_MESSAGE, index));
                one_of(oneof.name(), &enumeration, &variants, &rule, &mut body);
            }
        }
        let (at, missing) = if body.is_empty() { ("_at", "_missing") } else { ("at", "missing") };
        _ = writeln!(
            self.source,
            "impl RequiredFields for v1::{module}{} {{\n\
             fn find_missing(&self, {at}: &str, {missing}: &mut Vec<MissingField>) {{\n{body}}}\n}}",
            message.name()
        );
        let inner = format!("{module}{}::", snake(message.name()));
        for (index, nested) in (0..).zip(&message.nested_type) {
            self.message(&join(path, MESSAGES_OF_MESSAGE, index), &inner, nested);
        }
    }

    fn field(&self, path: &[i32], field: &FieldDescriptorProto, body: &mut String) {
        let name = field.name();
        let rule = self.rule(path);
        let is_message = field.r#type() == Type::Message && field.type_name().starts_with(".comity.v1.");
        _ = match (is_message, field.label() == Label::Repeated, &rule) {
            (true, true, _) => {
                writeln!(body, "each(&self.{name}, at, {name:?}, missing);")
            }
            (true, false, Rule::Optional) => {
                writeln!(body, "if let Some(it) = &self.{name} {{ it.find_missing(&path(at, {name:?}), missing); }}")
            }
            (true, false, Rule::Required { hint }) => {
                writeln!(body, "required(self.{name}.as_ref(), &path(at, {name:?}), {hint:?}, missing);")
            }
            (true, false, Rule::RequiredUnless { other, hint }) => {
                writeln!(
                    body,
                    "if self.{other}.is_empty() \
                     {{ required(self.{name}.as_ref(), &path(at, {name:?}), {hint:?}, missing); }}"
                )
            }
            (false, _, Rule::Optional) => Ok(()),
            (false, _, Rule::Required { hint }) => {
                let unset = unset(field);
                writeln!(body, "if {unset} {{ missing.push(MissingField::new(path(at, {name:?}), {hint:?})); }}")
            }
            (false, _, Rule::RequiredUnless { other, hint }) => {
                let unset = unset(field);
                writeln!(
                    body,
                    "if {unset} && self.{other}.is_empty() \
                     {{ missing.push(MissingField::new(path(at, {name:?}), {hint:?})); }}"
                )
            }
        };
    }

    fn rule(&self, path: &[i32]) -> Rule<'a> {
        let comment = self.comments.get(path).copied().unwrap_or_default().trim();
        if let Some((other, rest)) = comment.strip_prefix("Required unless `").and_then(|it| it.split_once("` is set."))
        {
            // `Outer.field` belongs to the message that contains this one. If it is set, that message skips the checks of this
            // one.
            if other.contains('.') {
                Rule::Required { hint: first_sentence(rest) }
            } else {
                Rule::RequiredUnless { other, hint: first_sentence(rest) }
            }
        } else if let Some(rest) = comment.strip_prefix("Required.") {
            Rule::Required { hint: first_sentence(rest) }
        } else {
            assert!(
                !comment.starts_with("Required"),
                "write \"Required.\" or \"Required unless `field` is set.\": {comment}"
            );
            Rule::Optional
        }
    }
}

fn one_of(name: &str, enumeration: &str, variants: &[&FieldDescriptorProto], rule: &Rule<'_>, body: &mut String) {
    let mut arms = String::new();
    if let Rule::Required { hint } | Rule::RequiredUnless { hint, .. } = rule {
        // Clients set one of the variants beside the message's other fields: they do not see the oneof's name.
        _ = writeln!(
            arms,
            "None => missing.push(MissingField::new(if at.is_empty() {{ {name:?}.to_owned() }} else {{ at.to_owned() }}, \
             {hint:?})),"
        );
    }
    for field in variants.iter().filter(|field| field.r#type() == Type::Message) {
        let variant = camel(field.name());
        _ = writeln!(
            arms,
            "Some({enumeration}::{variant}(it)) => it.find_missing(&path(at, {:?}), missing),",
            field.name()
        );
    }
    if !arms.is_empty() {
        _ = writeln!(body, "match &self.{name} {{\n{arms}_ => {{}}\n}}");
    }
}

/// The condition under which a field that is no message is not set.
fn unset(field: &FieldDescriptorProto) -> String {
    let name = field.name();
    match field.r#type() {
        _ if field.label() == Label::Repeated => format!("self.{name}.is_empty()"),
        _ if field.proto3_optional() => format!("self.{name}.is_none()"),
        Type::String | Type::Bytes => format!("self.{name}.is_empty()"),
        Type::Bool => panic!("{name} is a bool: false cannot be told from missing"),
        _ => format!("self.{name} == 0"),
    }
}

fn first_sentence(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = words.split_once(". ").map_or(words.as_str(), |(first, _)| first);
    sentence.trim_end_matches('.').to_owned()
}

fn join(path: &[i32], kind: i32, index: i32) -> Vec<i32> {
    [path, &[kind, index]].concat()
}

/// `PeeringReport` as `peering_report`, as prost names the module of nested types.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// `add_learner` as `AddLearner`.
fn camel(name: &str) -> String {
    let word = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    name.split('_').map(word).collect()
}
