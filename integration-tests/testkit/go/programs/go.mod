module comity.dev/testkit/programs

go 1.25.0

require golang.org/x/sys v0.31.0
