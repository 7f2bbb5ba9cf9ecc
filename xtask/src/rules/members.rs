//! docs/LOCKING.md: each `Type::member` is a type of the sources with a field, variant, function or constant of that
//! name.

use crate::tree;
use anyhow::{Context, Result};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use syn::visit::{self, Visit};

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root.join("docs/LOCKING.md"))
        .context("cannot read docs/LOCKING.md")?;
    let mut known = Members::default();
    for source in tree::sources(root)? {
        let path = source.path.display();
        let syntax = syn::parse_file(&source.text).with_context(|| format!("{path}"))?;
        known.visit_file(&syntax);
    }
    Ok(problems(&text, &known))
}

fn problems(text: &str, known: &Members) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2) {
            let Some((of, member)) = name.split_once("::") else { continue };
            let at = format!("docs/LOCKING.md:{}", number + 1);
            match known.0.get(of) {
                None => findings.push(format!("{at}: there is no type {of}")),
                Some(members) if !members.contains(member.trim_end_matches("()")) => {
                    findings.push(format!("{at}: {of} has no {member}"));
                }
                Some(_) => {}
            }
        }
    }
    findings
}

/// The types of the sources, by name, with their members.
#[derive(Default)]
struct Members(HashMap<String, HashSet<String>>);

impl Members {
    fn add(&mut self, of: &syn::Ident, members: impl IntoIterator<Item = String>) {
        self.0.entry(of.to_string()).or_default().extend(members);
    }
}

impl<'ast> Visit<'ast> for Members {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let fields = item.fields.iter().filter_map(|field| field.ident.as_ref());
        self.add(&item.ident, fields.map(ToString::to_string));
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add(&item.ident, item.variants.iter().map(|variant| variant.ident.to_string()));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let functions = item.items.iter().filter_map(|item| match item {
            syn::TraitItem::Fn(function) => Some(function.sig.ident.to_string()),
            _ => None,
        });
        self.add(&item.ident, functions);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let syn::Type::Path(of) = &*item.self_ty
            && let Some(of) = of.path.segments.last()
        {
            let members = item.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(function) => Some(function.sig.ident.to_string()),
                syn::ImplItem::Const(constant) => Some(constant.ident.to_string()),
                _ => None,
            });
            self.add(&of.ident, members);
        }
        visit::visit_item_impl(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_or_member_that_does_not_exist_is_a_finding() {
        let mut known = Members::default();
        let source = "struct A { b: u8 } impl A { fn c() {} } enum D { E } trait F { fn g(); }";
        known.visit_file(&syn::parse_str(source).unwrap());
        let right = "`A::b`, `A::c`, `A::c()`, `D::E`, `F::g`, `A`, `b/c.rs`";
        assert_eq!(problems(right, &known), [""; 0]);
        assert_eq!(
            problems("`A::x`\n`B::b`", &known),
            ["docs/LOCKING.md:1: A has no x", "docs/LOCKING.md:2: there is no type B",]
        );
    }
}
