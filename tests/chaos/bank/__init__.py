"""A bank on a cluster that is hurt in every way: members of a group move money by consume, transform and produce.

`round` has the promises and what is done in a round, `faults` the ways of doing harm, `member` and
`conformance/java/BankMember.java` the two kinds of member, `told` what members tell of themselves, `books` what the
topics have to hold.
"""
