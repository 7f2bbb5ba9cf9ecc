//! A function has at most 100 lines of code: lines with a letter or digit, comments left out. Clippy's `too_many_lines`
//! also counts lines of brackets only, and skips code that it does not build (loom, shuttle).

use crate::tree;
use anyhow::{Context, Result};
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

const MOST: usize = 100;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for source in tree::sources(root)? {
        let path = source.shown();
        for (name, lines) in functions(&source.text).with_context(|| path.clone())? {
            if lines > MOST {
                findings.push(format!(
                    "{path}: {name}: {lines} lines of code, {MOST} allowed: split it"
                ));
            }
        }
    }
    Ok(findings)
}

/// Each function's name and its lines of code.
fn functions(text: &str) -> Result<Vec<(String, usize)>> {
    let mut functions = Functions { lines: text.lines().collect(), found: Vec::new() };
    functions.visit_file(&syn::parse_file(text)?);
    Ok(functions.found)
}

struct Functions<'a> {
    lines: Vec<&'a str>,
    found: Vec<(String, usize)>,
}

impl Functions<'_> {
    fn add(&mut self, name: &syn::Ident, body: &syn::Block) {
        let (start, end) = (body.span().start().line, body.span().end().line);
        let inside = self.lines.get(start..end.saturating_sub(1)).unwrap_or_default();
        let is_code = |line: &&&str| {
            !line.trim_start().starts_with("//") && line.contains(char::is_alphanumeric)
        };
        self.found.push((name.to_string(), inside.iter().filter(is_code).count()));
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig.ident, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig.ident, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.add(&item.sig.ident, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_code_are_counted() {
        let text = "fn a() {\n    // comment\n\n    b(\n        1,\n    );\n}\n\
                    impl A {\n    fn c(\n        &self,\n    ) {\n        d()\n    }\n}\n\
                    trait B {\n    fn e() {\n        f();\n        g();\n    }\n    fn h();\n}\n";
        let found = functions(text).unwrap();
        let found: Vec<_> = found.iter().map(|(name, lines)| (name.as_str(), *lines)).collect();
        assert_eq!(found, [("a", 2), ("c", 1), ("e", 2)]);
    }
}
