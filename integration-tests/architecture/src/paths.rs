//! Every path that an item names, in code and in the arguments of macros.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{Visit, visit_macro, visit_path};
use syn::{Item, ItemUse, Macro, UseTree, Visibility};

/// A path as written, by segment.
pub(crate) type Segments = Vec<String>;

/// The paths that `item` names.
pub(crate) fn paths(item: &Item) -> Vec<Segments> {
    let mut found = Found(Vec::new());
    found.visit_item(item);
    found.0
}

/// The paths of a `use`, each with the name by which the module knows it; a glob has none.
pub(crate) fn imported(tree: &UseTree) -> Vec<(Option<String>, Segments)> {
    let mut found = Vec::new();
    flatten(tree, &mut Vec::new(), &mut found);
    found
}

fn flatten(tree: &UseTree, prefix: &mut Segments, found: &mut Vec<(Option<String>, Segments)>) {
    let whole = |name: &str| {
        let mut path = prefix.clone();
        if name != "self" {
            path.push(name.to_owned());
        }
        path
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, found);
            prefix.pop();
        }
        UseTree::Name(name) => {
            let path = whole(&name.ident.to_string());
            found.push((path.last().cloned(), path));
        }
        UseTree::Rename(rename) => found.push((Some(rename.rename.to_string()), whole(&rename.ident.to_string()))),
        UseTree::Glob(_) => found.push((None, prefix.clone())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, found)),
    }
}

struct Found(Vec<Segments>);

impl<'ast> Visit<'ast> for Found {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit_path(self, path);
    }

    /// `pub(crate)` names no item.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.0.extend(imported(&item.tree).into_iter().map(|(_, path)| path));
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        visit_macro(self, call);
        self.tokens(call.tokens.clone());
    }
}

impl Found {
    /// Identifiers joined by `::`, at any depth.
    fn tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Segments::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 && !path.is_empty() {
                        self.0.push(std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    if !path.is_empty() {
                        self.0.push(std::mem::take(&mut path));
                    }
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        if !path.is_empty() {
            self.0.push(path);
        }
    }
}
