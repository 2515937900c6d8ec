"""Access control as in RocketMQ's ACL 2.0, and 1.0: users and their permissions. Pure.

    users.py            users and their file; a signed request → its user; requests that need a signature
    acls.py             resources and actions; the permissions of a user, and their file
    plain_acl.py        ACL 1.0, beside it: accounts and their rights, in YAML files
    authorization.py    a request → resources and actions; with a user's entries → allowed, or the reason for refusal

Begin with `authorization.py`. Java: the module auth; up to 5.3.2 the module acl.
"""
