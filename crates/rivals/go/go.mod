module rivals

go 1.19
